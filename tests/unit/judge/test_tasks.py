"""The task of a run: one for maps and metrics, whoever says it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mhex
from mhex.errors import ArgumentError
from mhex.judge import cases
from mhex.judge.plan import MethodRun, task_of_subject
from mhex.perturb import Subject
from support.tiny_models import tiny

X = torch.randn(3, 1, 4, 4, generator=torch.Generator().manual_seed(0)).double()
DROP = [("average-drop", {"reference": "mean"})]


class Linear(nn.Module):
    """Three classes, and a configuration if one is given."""

    def __init__(self, said: str | None = None) -> None:
        super().__init__()
        self.head = nn.Linear(16, 3, bias=False).double()
        self.head.weight.data = torch.randn(3, 16, generator=torch.Generator().manual_seed(1)).double()
        if said is not None:
            self.config = SimpleNamespace(problem_type=said)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.flatten(1))


def judged(model: nn.Module, **options: Any) -> list[float]:
    report = mhex.evaluate(model, X, ["input-x-gradient"], DROP, controls=False, **options)
    found: list[float] = report.rows.column("value").to_pylist()
    return found


@pytest.mark.parametrize("wrong", ["multilabel", "multi_label", "", 3])
def test_an_unknown_task_is_refused(wrong: Any) -> None:
    with pytest.raises(ArgumentError, match=r"Expected task 'classification' or 'multi-label', because .*, but got"):
        judged(Linear(), task=wrong)


def test_a_regression_is_refused() -> None:
    with pytest.raises(ArgumentError, match="metrics judge classes, but got 'regression'"):
        judged(Linear(), task="regression")
    with pytest.raises(ArgumentError, match="the model's configuration says 'regression'"):
        judged(Linear("regression"))
    assert judged(Linear("regression"), task="classification") == judged(Linear())


def test_the_user_overrides_the_configuration() -> None:
    one, several = judged(Linear()), judged(Linear("multi_label_classification"))
    assert one != pytest.approx(several, rel=1e-3)
    assert judged(Linear("multi_label_classification"), task="classification") == one
    assert judged(Linear(), task="multi-label") == several
    assert judged(Linear("single_label_classification")) == one


def test_task_is_read_from_the_heads() -> None:
    for several, wanted in ((True, "multi-label"), (False, "classification")):
        model = tiny("cnn")
        mhex.attach(model, 3, multi_label=several)
        assert task_of_subject(Subject(model, X), None) == wanted


@pytest.mark.parametrize("task", ["classification", "multi-label"])
def test_maps_are_made_by_the_task_of_the_run(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the class, of changed images and of another model, whatever the configuration says."""
    whole, seen = cases.Explainer.__call__, []

    def call(explainer: cases.Explainer, *arguments: Any) -> Any:
        seen.append(explainer.task)
        return whole(explainer, *arguments)

    monkeypatch.setattr(cases.Explainer, "__call__", call)
    metrics: Any = [("max-sensitivity", {"draws": 1, "units": "model"}), "randomization:labels"]
    model = Linear("multi_label_classification")
    mhex.evaluate(model, X, ["rise"], metrics, controls=False, task=task, relabelled=Linear())
    assert seen == [task] * 3


def test_a_method_is_prepared_once_for_all_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another model, such as one of other labels, has explainers of its own."""
    prepare, methods = cases.Explainer.__init__, []

    def init(explainer: cases.Explainer, model: Any, method: str, **options: Any) -> None:
        methods.append(method)
        prepare(explainer, model, method, **options)

    monkeypatch.setattr(cases.Explainer, "__init__", init)
    names = ["rise", "input-x-gradient"]
    mhex.evaluate(Linear(), X, names, ["compactness"], controls=False, batch_size=1)
    assert methods == names
    metrics = ["compactness", "randomization:labels"]
    mhex.evaluate(Linear(), X, ["rise"], metrics, controls=False, batch_size=len(X), relabelled=Linear())
    assert methods == [*names, "rise", "rise"]


def test_the_cache_keeps_tasks_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    whole, made = cases.Explainer.__call__, []

    def call(explainer: cases.Explainer, *arguments: Any) -> Any:
        made.append(explainer.task)
        return whole(explainer, *arguments)

    monkeypatch.setattr(cases.Explainer, "__call__", call)
    for task in ("classification", "multi-label", "classification", "multi-label"):
        judged(Linear(), task=task, cache=tmp_path)
    assert made == ["classification", "multi-label"]


def test_the_cache_keeps_readings_of_outputs_apart(tmp_path: Any) -> None:
    """Maps of the same numbers differ where these are logits and where they are probabilities."""
    sample: Any = (MethodRun("rise"), ("digest",), torch.tensor([0]), 0)
    logits, shares = (cases.MapCache(tmp_path, "model", "classification", way) for way in ("logits", "probabilities"))
    logits.put(*sample, torch.ones(1, 2, 2))
    assert shares.get(*sample) is None
    shares.put(*sample, torch.zeros(1, 2, 2))
    assert logits.get(*sample).equal(torch.ones(1, 2, 2))  # type: ignore[union-attr]
