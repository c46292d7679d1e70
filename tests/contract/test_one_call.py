"""What holds after one call of every method on every family that it serves: two explanations serve all checks."""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mhex
from support.cases import METHODS, assert_same, explain, native_grid, pairs
from support.models import CLASSES, LENGTHS, Family, call
from support.snapshot import Snapshot, in_use

COUNT, TARGETS = 5, [0, 3]


@dataclass(frozen=True)
class Observed:
    """A method on a family.

    Attributes:
        inputs: A batch of five samples.
        unchanged: Whether they were the same afterwards.
        state: What had changed about the model and the process afterwards; empty for nothing.
        logits: Of a plain call of the model.
        predicted: Explanation of the predicted classes.
        several: Explanation of two classes.
    """

    method: str
    family: Family
    model: nn.Module
    inputs: Any
    unchanged: bool
    state: str
    logits: Tensor
    predicted: mhex.Explanation
    several: mhex.Explanation


@functools.cache
def used_model(family: Family) -> nn.Module:
    """A model in the middle of its life, one for all methods: each of them must leave it as it was."""
    return in_use(family.fresh())


def flags_of(model: nn.Module) -> list[bool]:
    return [m.training for m in model.modules()] + [p.requires_grad for p in model.parameters()]


def observe(method: str, family: Family) -> Observed:
    """Explain twice: the predicted classes, and two classes at once."""
    model, inputs = used_model(family), family.inputs(COUNT)
    copies = copy.deepcopy(inputs)
    with torch.no_grad():
        logits = call(family.model(), inputs)
    flags = flags_of(model)
    predicted = explain(model, inputs, method)  # what a model makes lazily in its first call is its own affair
    before, state = Snapshot(model), "" if flags_of(model) == flags else "modes or flags of the model changed"
    several = explain(model, inputs, method, target=TARGETS)
    try:
        before.check()
    except AssertionError as error:
        state = str(error)
    if state:
        used_model.cache_clear()
    unchanged = all(
        torch.equal(value, earlier)
        for value, earlier in zip(
            inputs.values() if isinstance(inputs, dict) else [inputs],
            copies.values() if isinstance(copies, dict) else [copies],
            strict=True,
        )
    )
    return Observed(method, family, model, inputs, unchanged, state, logits, predicted, several)


def check_the_model_is_left_as_it_was(observed: Observed) -> None:
    assert observed.state == ""


def check_the_inputs_are_left_as_they_were(observed: Observed) -> None:
    assert observed.unchanged


def check_logits_are_those_of_the_plain_model(observed: Observed) -> None:
    largest = max(1.0, float(observed.logits.abs().max()))
    for explanation in (observed.predicted, observed.several):
        assert float((explanation.logits - observed.logits).abs().max()) <= 1e-12 * largest
        assert not explanation.logits.requires_grad
    assert observed.predicted.target.tolist() == observed.logits.argmax(1).tolist()
    assert observed.several.target.tolist() == [TARGETS] * COUNT


def check_scores_have_the_shape_of_the_input(observed: Observed) -> None:
    """Images: the native grid of the method. Texts: one score a token, and none for special tokens and padding."""
    method, family, scores = observed.method, observed.family, observed.several.scores
    if family.modality == "image":
        grid = native_grid(method, family.size, family.feature_grid, family.grid if family.blocks else None)
        grid = family.head_grid or family.size if "heads" in METHODS[method].needs.keep else grid
        assert scores.shape == (COUNT, 2, *grid)
        assert observed.several.map().shape == (COUNT, 2, *family.size)
        return
    explanation = observed.predicted
    special = torch.zeros_like(observed.inputs["input_ids"], dtype=torch.bool)
    for row, length in enumerate(LENGTHS):
        special[row, 0] = special[row, length - 1] = True
        silent = explanation.scores[row, [0, *range(length - 1, explanation.scores.shape[1])]]
        assert float(silent.abs().max()) == 0
    assert float(explanation.special.masked_fill(special, 0).abs().max()) == 0, "only special tokens are reported apart"
    assert (float(explanation.special.abs().max()) > 0) == (method != "shap"), "shap never hides them"


def check_the_result_holds_what_belongs_to_it(observed: Observed) -> None:
    method, family, one, two = METHODS[observed.method], observed.family, observed.predicted, observed.several
    assert (one.method, one.modality, one.signed) == (method.name, family.modality, method.signed)
    assert two.scores.shape == (COUNT, 2, *one.scores.shape[1:])
    assert one.scores.dtype == two.scores.dtype == torch.float64
    assert one.logits.shape == one.probabilities.shape == (COUNT, CLASSES)
    assert torch.allclose(one.probabilities.sum(1), torch.ones(COUNT, dtype=torch.float64))
    assert one.cost["forwards"] >= 1
    assert one.cost["seconds"] > 0
    assert one.size == family.size
    if family.size is None:
        assert one.scores.shape == one.special.shape == (COUNT, max(LENGTHS))
        assert torch.equal(one.map(), one.scores)
    else:
        assert one.map().shape == (COUNT, *family.size)
        assert two.normalized(size=(10, 12)).shape == (COUNT, 2, 10, 12)
        assert one.special is None


def check_class_specific_or_not(observed: Observed) -> None:
    method, scores = METHODS[observed.method], observed.several.scores
    first, second = scores[:, 0], scores[:, 1]
    assert float(scores.abs().max()) > 0, "an empty map explains nothing"
    assert float(scores.min()) < 0 if method.signed else float(scores.min()) >= 0
    if method.class_specific:
        assert float((first - second).abs().max()) > 1e-3 * float(scores.abs().max())
    else:
        assert torch.equal(first, second)


def check_batch_equals_singles(observed: Observed) -> None:
    """The last sample; of texts also the shortest, which has most padding in the batch."""
    family = observed.family
    for index in (4,) if family.modality == "image" else (1, 4):
        alone = explain(family.model(), family.sample(observed.inputs, index), observed.method)
        assert int(alone.target[0]) == int(observed.predicted.target[index])
        scores = observed.predicted.scores[index : index + 1]
        scores = scores if family.modality == "image" else scores[..., : LENGTHS[index]]
        assert_same(scores, alone.scores, observed.method)


@pytest.mark.parametrize("pair", pairs())
def test_what_holds_after_a_call(pair: tuple[str, Family]) -> None:
    """One test for all: thousands of small ones would cost as much as the calls that they share."""
    observed = observe(*pair)
    for check in (
        check_the_model_is_left_as_it_was,
        check_the_inputs_are_left_as_they_were,
        check_logits_are_those_of_the_plain_model,
        check_scores_have_the_shape_of_the_input,
        check_the_result_holds_what_belongs_to_it,
        check_class_specific_or_not,
        check_batch_equals_singles,
    ):
        check(observed)
