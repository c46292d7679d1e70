"""A map that is not finite costs its image, and nothing else."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mhex
from mhex.bench import cases
from mhex.errors import CaptureError, MhexWarning, NotFiniteError

METRICS: Any = [
    ("deletion", {"reference": "mean", "steps": 4}),
    *("compactness", "average-drop", "segmentation"),
    ("box-sensitivity", {"sizes": (2,), "count": 4}),
    ("infidelity", {"draws": 4}),
    ("max-sensitivity", {"draws": 2, "units": "model"}),
    ("saco", {"groups": 4}),
]
METHODS = ["input-x-gradient", "occlusion"]


class Rooted(nn.Module):
    """Its outputs are finite everywhere, and its gradient is not where a pixel is 0."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.abs().sqrt().flatten(1))


@pytest.fixture
def model() -> Rooted:
    torch.manual_seed(0)
    return Rooted().double()


@pytest.fixture
def images() -> Tensor:
    torch.manual_seed(1)
    return torch.randn(5, 1, 4, 4).double()


def masks() -> Tensor:
    return torch.eye(4).long().expand(5, -1, -1)


def judged(model: nn.Module, x: Tensor, metrics: Any = METRICS, **options: Any) -> mhex.Report:
    return mhex.evaluate(model, (x, torch.zeros(5).long(), masks()), METHODS, metrics, **options)


def without(images: Tensor, *gone: int) -> Tensor:
    changed = images.clone()
    changed[list(gone), 0, 2, 1] = 0
    return changed


def test_the_error_keeps_the_maps(model: Rooted, images: Tensor) -> None:
    with pytest.raises(NotFiniteError, match="'input-x-gradient' gave scores that are not finite") as caught:
        mhex.explain(model, without(images, 1), "input-x-gradient")
    assert isinstance(caught.value, CaptureError)
    assert caught.value.scores.shape == (5, 4, 4)
    assert caught.value.scores.flatten(1).isnan().any(1).tolist() == [False, True, False, False, False]


@pytest.mark.parametrize("size", [1, 2, 5])
def test_one_map_costs_one_image(model: Rooted, images: Tensor, size: int) -> None:
    whole = judged(model, images)
    with pytest.warns(MhexWarning) as caught:
        report = judged(model, without(images, 1, 3), batch_size=size)
    told = [str(one.message) for one in caught if "not finite" in str(one.message)]
    assert told == ["Method 'input-x-gradient' gave maps that are not finite for 2 of 5 samples; they are skipped."]
    kept = [0, 2, 4]
    for metric in whole.metrics:
        found, wanted = report.values(metric)[1], whole.values(metric)[1]
        assert found["input-x-gradient"][[1, 3]].isnan().all()
        for method in whole.methods:
            assert torch.allclose(found[method][kept], wanted[method][kept], 1e-9, equal_nan=True), (metric, method)
            if method != "input-x-gradient":
                assert found[method].isfinite().any(1).all()
    cells = [cell for cell in report.summary(resamples=50) if cell.method == "input-x-gradient"]
    assert {(cell.n, cell.skipped) for cell in cells} == {(3, 2)}
    counts = report.skipped()
    assert list(counts) == report.methods
    assert counts["input-x-gradient"] == dict.fromkeys(report.metrics, 2)
    assert counts["occlusion"] == dict.fromkeys(report.metrics, 0)


def test_no_map_at_all(model: Rooted, images: Tensor) -> None:
    with pytest.warns(MhexWarning, match="for 5 of 5 samples"):
        report = judged(model, without(images, 0, 1, 2, 3, 4), ["compactness"])
    assert "— (5 skipped)" in report.table()
    assert report.values("compactness")[1]["occlusion"].isfinite().all()


def test_maps_in_the_cache_keep_their_gaps(model: Rooted, images: Tensor, tmp_path: Any) -> None:
    for _ in range(2):
        with pytest.warns(MhexWarning, match="for 1 of 5 samples"):
            report = judged(model, without(images, 1), ["compactness"], cache=tmp_path)
    assert report.values("compactness")[1]["input-x-gradient"].isnan().any(1).tolist() == [
        *(False, True, False, False, False)
    ]


def spoiled(monkeypatch: pytest.MonkeyPatch, when: Any) -> None:
    """Let `explain` fail for the third image where asked to."""
    whole = cases.explain

    def explain(model: nn.Module, inputs: Tensor, method: str, target: Any, **options: Any) -> Any:
        found = whole(model, inputs, method, target, **options)
        if when(inputs, target):
            found.scores[2] = torch.inf
        return found

    monkeypatch.setattr(cases, "explain", explain)


def test_maps_that_a_metric_asks_for(model: Rooted, images: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    """They concern this metric alone, also where its other protocols share them."""
    metrics: Any = [("max-sensitivity", {"draws": 2, "units": "model"}), "compactness", "randomization:logit"]
    metrics.append(("randomization", {"mode": "logit", "sign": "absolute"}))
    predicted = model(images).argmax(1)
    spoiled(monkeypatch, lambda inputs, target: not torch.equal(target, predicted))
    with pytest.warns(MhexWarning, match="Method 'occlusion' gave maps that are not finite for 1 of 5 samples"):
        report = judged(model, images, metrics, controls=False)
    bad = {name: report.values(name)[1]["occlusion"].isnan().any(1).tolist() for name in report.metrics}
    assert not any(bad["compactness"])
    assert not any(bad[report.metrics[0]])
    assert bad["randomization:logit"] == [False, False, True, False, False]
    assert bad[report.metrics[3]] == [False, False, True, False, False]


def test_maps_for_another_class(model: Rooted, images: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    part = {"reference": "mean", "steps": 3, "sizes": (2,), "count": 4}
    data = {"image": images, "label": [0] * 5, "other": [1, 1, 1, -1, 1]}
    spoiled(monkeypatch, lambda inputs, target: bool((target == 1).any()))
    with pytest.warns(MhexWarning, match="for 1 of 5 samples"):
        report = mhex.evaluate(
            model, data, METHODS[:1], [("class-discrimination", part), "compactness"], target="label", controls=False
        )
    found = [report.values(name)[1]["input-x-gradient"].isnan().any(1).tolist() for name in report.metrics]
    assert found == [[False, False, True, True, False], [False] * 5]


def test_other_errors_stay(model: Rooted, images: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    def explain(*args: Any, **options: Any) -> Any:
        raise CaptureError("nothing was seen")

    monkeypatch.setattr(cases, "explain", explain)
    with pytest.raises(CaptureError, match="nothing was seen"):
        judged(model, images)


def test_finite_maps_are_not_warned_of(model: Rooted, images: Tensor) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        judged(model, images, ["compactness"])
