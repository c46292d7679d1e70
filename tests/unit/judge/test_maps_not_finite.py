"""A map that is not finite costs its image, and nothing else."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mhex
from mhex.errors import CaptureError, MhexWarning, NotFiniteError
from mhex.judge import cases
from mhex.judge.cases import Gaps
from mhex.metrics.case import Case
from mhex.perturb import Subject

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


def test_the_error_is_handed_on_by_workers() -> None:
    error = NotFiniteError("no number", torch.tensor([1.0, torch.inf]))
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, NotFiniteError)
    assert str(again) == "no number"
    assert torch.equal(again.scores, error.scores)


def judged(model: nn.Module, x: Tensor, metrics: Any = METRICS, **options: Any) -> mhex.Report:
    return mhex.evaluate(model, (x, torch.zeros(5).long(), masks()), METHODS, metrics, **options)


def without(images: Tensor, *gone: int) -> Tensor:
    changed = images.clone()
    changed[list(gone), 0, 2, 1] = 0
    return changed


def test_the_error_keeps_the_maps(model: Rooted, images: Tensor) -> None:
    with pytest.raises(NotFiniteError, match=r"not finite on this model, for sample 1 of this batch of 5\.$") as caught:
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
    """Let explainers fail for the third image where asked to."""
    whole = cases.Explainer.__call__

    def call(explainer: cases.Explainer, inputs: Tensor, target: Any) -> Any:
        explanation = whole(explainer, inputs, target)
        if when(inputs, target):
            explanation.scores[2] = torch.inf
        return explanation

    monkeypatch.setattr(cases.Explainer, "__call__", call)


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


LOGIT = ["randomization", "randomization:logit"]


@pytest.mark.parametrize("metrics", [LOGIT, LOGIT[::-1]])
def test_a_metric_loses_the_maps_it_used(
    model: Rooted, images: Tensor, metrics: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """Whatever was asked before it, in the same run or in one that is gone on with."""
    predicted = model(images).argmax(1)
    spoiled(monkeypatch, lambda inputs, target: not torch.equal(target, predicted))
    wanted = {"randomization": [False] * 5, "randomization:logit": [False, False, True, False, False]}
    for done, folder in ((metrics, "at once"), (metrics[:1], "gone on with"), (metrics, "gone on with")):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            report = judged(model, images, done, controls=False, out=tmp_path / folder)
        found = {name: report.values(name)[1]["occlusion"].isnan().any(1).tolist() for name in done}
        assert found == {name: wanted[name] for name in done}


def test_gaps_of_several_draws_add_up(model: Rooted, images: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what two protocols share is lost to both, the second of which makes no map at all."""
    whole, calls = cases.Explainer.__call__, [0]

    def call(explainer: cases.Explainer, inputs: Tensor, target: Any) -> Any:
        explanation = whole(explainer, inputs, target)
        if isinstance(inputs, Tensor) and not torch.equal(inputs, images):
            calls[0] += 1
            explanation.scores[calls[0]] = torch.nan  # another image at every draw
        return explanation

    monkeypatch.setattr(cases.Explainer, "__call__", call)
    part = {"draws": 2, "units": "model"}
    metrics: Any = [("max-sensitivity", part), ("max-sensitivity:captum", {"draws": 2}), "compactness"]
    with pytest.warns(MhexWarning, match="for 2 of 5 samples"):
        report = mhex.evaluate(model, images, ["occlusion"], metrics, controls=False)
    assert calls == [2]
    bad = [report.values(name)[1]["occlusion"].isnan().any(1).tolist() for name in report.metrics]
    assert bad == [[False, True, True, False, False]] * 2 + [[False] * 5]


def test_what_is_made_of_other_things_has_their_gaps(images: Tensor) -> None:
    """A case notes all that was used, also where it was there already."""
    case = Case(Subject(Rooted().double(), images), images[:, 0])
    gaps = Gaps(case.ids)
    spoilt = images[:, 0].clone()
    spoilt[3] = torch.nan

    def inner() -> Tensor:
        return case.once("inner", lambda: gaps.fill(spoilt, case))

    for label, ask, lost in (
        ("first", inner, {3}),
        ("second", lambda: case.once("outer", inner), {3}),
        ("third", lambda: case.once("outer", inner), {3}),
        ("fourth", lambda: case.once("nothing", lambda: images), set()),
        ("fifth", lambda: gaps.fill(spoilt, case), {3}),
        ("sixth", lambda: images, set()),
    ):
        gaps.begin(label, case)
        assert bool(ask().isfinite().all())
        assert set(gaps.of(case).nonzero().flatten().tolist()) == lost, label
    assert gaps.lost == {3}
    assert case.making is None


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
    def call(*arguments: Any) -> Any:
        raise CaptureError("nothing was seen")

    monkeypatch.setattr(cases.Explainer, "__call__", call)
    with pytest.raises(CaptureError, match="nothing was seen"):
        judged(model, images)


def test_finite_maps_are_not_warned_of(model: Rooted, images: Tensor) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = judged(model, images, ["compactness"])
    values = report.values(report.metrics[0])[1]
    assert len(values) >= len(METHODS)
    assert not any(numbers.isnan().any() for numbers in values.values())
