"""Average precision beside an outside package."""

import pytest
import torch

from mhex.metrics.segmentation import average_precision, segmentation
from support.maps_and_masks import large, near, random_case


@pytest.mark.parametrize("kind", ["different", "tied", "left out"])
def test_average_precision_is_sklearns(kind):
    metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
    draw = torch.Generator().manual_seed(5)
    scores = torch.randn(8, 60, generator=draw).double()
    scores = (2 * scores).round() if kind != "different" else scores
    positive = torch.rand(8, 60, generator=draw) < 0.3
    counted = torch.rand(8, 60, generator=draw) < 0.7 if kind == "left out" else torch.ones_like(positive)
    found = average_precision(scores, positive, counted)
    for n in range(8):
        kept = counted[n]
        wanted = metrics.average_precision_score(positive[n][kept].numpy(), scores[n][kept].numpy())
        assert float(found[n]) == pytest.approx(wanted, abs=1e-12)


def test_published_precision_is_sklearns():
    metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
    case = random_case()
    found = segmentation(case.saliency, case.mask)
    for n, (s, g) in enumerate(zip(large(case), case.mask, strict=True)):
        s = ((s - s.min()) / (s.max() - s.min()))[g >= 0]
        g = g[g >= 0]
        both = metrics.average_precision_score(torch.cat([1 - g, g]).numpy(), torch.cat([1 - s, s]).numpy())
        near(found[n, :2], [both, metrics.average_precision_score(g.numpy(), s.numpy())])
