"""Whatever is given as a target or as class names, the classes explained are the right ones, or a sentence is said."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

import mhex
from mhex.targets import ResolvedTarget, resolve_target
from support.argument_values import COUNTS, answer, anything, scalars, search
from support.models import CLASSES, FAMILIES

BATCH, COUNT = 2, 5
LOGITS = torch.linspace(-1, 1, BATCH * COUNT).reshape(BATCH, COUNT).sin()
CNN = FAMILIES["plain_cnn"]
TASKS = ("classification", "multi-label", "regression")
NAMES = (None, ["a", "b", "c", "d", "e"], ["cat", "Cat", "cat", "dog", "top2"], [""] * COUNT)
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def check(resolved: ResolvedTarget, logits: Tensor) -> None:
    """Classes exist, and every sample has as many of them."""
    assert resolved.index is not None
    assert resolved.index.shape == (BATCH, resolved.count)
    assert resolved.index.dtype == torch.long
    classes = logits.shape[1] if resolved.task == "regression" else max(2, logits.shape[1])
    assert 0 <= int(resolved.index.min()) <= int(resolved.index.max()) < classes


def wanted(target: Any, names: list[str] | None) -> list[int] | None:
    """Classes of plain targets, by other words than the library's; None for targets that are not plain."""
    if isinstance(target, (int, np.integer)) and not isinstance(target, bool):
        return [int(target)] if 0 <= target < COUNT else None
    if isinstance(target, str) and names is not None and names.count(target) == 1:
        return [names.index(target)]
    if isinstance(target, (list, tuple)) and target:
        parts = [wanted(part, names) if not isinstance(part, (list, tuple)) else None for part in target]
        return None if None in parts else [part[0] for part in parts if part]
    return None


@COUNTS
def test_any_target_is_explained_or_refused(factor: int) -> None:
    def body(case: tuple[Any, Any, Any, int]) -> None:
        target, names, task, columns = case
        if callable(target):
            return  # a function of the user's, whose errors are the user's
        logits = LOGITS[:, :columns]
        names = None if names is None else names[: max(2, columns)]
        resolved = answer(resolve_target, target, logits, names, task)
        plain = wanted(target, names) if columns == COUNT else None
        assert plain is None or resolved is not None
        if resolved is not None:
            check(resolved, logits)
            assert plain is None or resolved.index.tolist() == [plain] * BATCH
            assert resolved.several == (isinstance(target, (list, tuple)) or resolved.several)

    cases = st.tuples(anything, st.sampled_from(NAMES), st.sampled_from(TASKS), st.sampled_from([COUNT, COUNT, 2, 1]))
    search(body, cases, 200 * factor)


@COUNTS
def test_classes_of_each_sample(factor: int) -> None:
    """Of every kind of whole numbers."""
    kinds = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64)

    def body(case: tuple[list[int], torch.dtype]) -> None:
        classes, kind = case
        resolved = answer(resolve_target, torch.tensor(classes).to(kind), LOGITS)
        if min(classes) < 0 or max(classes) >= COUNT:
            assert resolved is None
        else:
            assert resolved.index.tolist() == [[one] for one in classes]

    search(body, st.tuples(st.lists(st.integers(-1, 6), min_size=2, max_size=2), st.sampled_from(kinds)), 40 * factor)


@COUNTS
def test_class_names(factor: int) -> None:
    def body(case: tuple[Any, Any]) -> None:
        names, target = case
        e = answer(mhex.explain, CNN.model(), CNN.inputs(1), "input-x-gradient", target=target, class_names=names)
        if e is not None:
            assert e.class_names is None or all(isinstance(name, str) for name in e.class_names)
            assert e.class_names is None or len(e.class_names) == CLASSES

    listed = st.lists(st.sampled_from(["cat", "dog", "Dog", "", "é"]), min_size=CLASSES, max_size=CLASSES)
    numbered = listed.map(lambda names: dict(enumerate(names)))
    strategy = st.tuples(st.one_of(anything, listed, numbered), st.sampled_from([None, 0, "cat", "dog", "DOG", ""]))
    search(body, strategy, 60 * factor)


@pytest.mark.parametrize("target", ["cat", "CAT"])
def test_a_name_of_two_classes_means_neither(target: str) -> None:
    with pytest.raises(ValueError, match="classes 0 and 2 have the name"):
        resolve_target(target, LOGITS[:, :4], ["cat", "dog", "cat", "magpie"])


@COUNTS
def test_what_functions_return(factor: int) -> None:
    def body(returned: Any) -> None:
        e = answer(mhex.explain, CNN.model(), CNN.inputs(1), "occlusion", target=lambda logits: returned, patch=16)
        assert e is None or bool(torch.isfinite(e.scores).all())

    search(body, anything, 60 * factor)


@COUNTS
def test_tasks_and_seeds(factor: int) -> None:
    def body(case: tuple[Any, Any]) -> None:
        task, seed = case
        e = answer(mhex.explain, CNN.model(), CNN.inputs(1), "smoothgrad", task=task, seed=seed, n=1)
        assert e is None or bool(torch.isfinite(e.scores).all())

    search(body, st.tuples(st.one_of(st.sampled_from(TASKS), scalars), st.one_of(st.just(0), scalars)), 40 * factor)


@pytest.mark.parametrize("returned", [torch.tensor([True]), torch.zeros(1, device="meta"), torch.ones(1).long()])
def test_functions_return_scores_of_the_kind_of_logits(returned: Tensor) -> None:
    with pytest.raises(ValueError, match=r"return scores as torch\.float"):
        mhex.explain(CNN.model(), CNN.inputs(1), "occlusion", target=lambda logits: returned, patch=16)
