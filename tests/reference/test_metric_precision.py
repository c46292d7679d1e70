"""Average precision beside an outside package, and segmentation of several classes."""

import pytest
import torch

from mhex.errors import ArgumentError
from mhex.metrics._maps import average_precision
from mhex.metrics.segmentation import segmentation
from mhex.metrics.segmentation_classes import class_agreement, class_confusion
from support.located import large, near, random_case


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


def test_classes_by_the_highest_map():
    first = torch.tensor([[1.0, 0.6], [0.0, 0.2]])
    second = torch.tensor([[0.0, 1.0], [0.3, 0.6]])
    mask = torch.tensor([[[3, 5], [0, 255]]])
    found = class_confusion(torch.stack([first, second])[None].double(), torch.tensor([[3, 5]]), mask, 0.5)
    assert found.shape == (1, 21, 21)
    assert found.dtype == torch.int64
    assert found[0].nonzero().tolist() == [[0, 0], [3, 3], [5, 5]]
    miou, pacc = class_agreement(found.sum(0))
    assert (float(miou), float(pacc)) == (1.0, 1.0)
    high = class_confusion(torch.stack([first, second])[None].double(), torch.tensor([[3, 5]]), mask, 0.2)
    assert int(high[0, 0, 5]) == 1  # 0.3 is above: background taken for class 5
    miou, pacc = class_agreement(high.sum(0))
    near(torch.stack([miou, pacc]), [(0 + 1 + 0.5) / 3, 2 / 3])


def test_images_with_fewer_classes_are_padded():
    draw = torch.Generator().manual_seed(1)
    maps, mask = torch.randn(2, 3, 4, 4, generator=draw), torch.randint(0, 3, (2, 8, 8), generator=draw)
    padded = class_confusion(maps, torch.tensor([[1, 2, 0], [2, 1, 4]]), mask, 0.4, count=5)
    near(padded[0], class_confusion(maps[:1, :2], torch.tensor([[1, 2]]), mask[:1], 0.4, count=5)[0].tolist())
    assert padded.sum((1, 2)).tolist() == [64, 64]


def test_classes_refuse():
    maps, mask = torch.zeros(1, 1, 2, 2), torch.zeros(1, 2, 2, dtype=torch.long)
    with pytest.raises(ArgumentError, match="classes from 0 to 20"):
        class_confusion(maps, torch.tensor([[21]]), mask, 0.5)
    with pytest.raises(ArgumentError, match="maps \\(B, G, h, w\\)"):
        class_confusion(maps[0], torch.tensor([[1]]), mask, 0.5)
