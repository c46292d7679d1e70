"""Ways of asking the same question that must give the same answer, for every method and family it serves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from support.cases import CORE, METHODS, TEXTS, assert_same, cases, explain, one_per_family
from support.models import CLASSES, FAMILIES, LENGTHS, LONGEST_TEXT, Family, call, fused_calls


def pick(scores: Tensor, index: int, family: Family) -> Tensor:
    """Scores of one sample as a batch of one; of text, without its padding."""
    one = scores[index : index + 1]
    return one if family.modality == "image" else one[..., : LENGTHS[index]]


@cases()
def test_batch_equals_singles(method: str, family: Family) -> None:
    model, inputs = family.model(), family.inputs(5)
    together = explain(model, inputs, method)
    for index in range(5):
        alone = explain(model, family.sample(inputs, index), method)
        assert int(alone.target[0]) == int(together.target[index])
        assert_same(pick(together.scores, index, family), alone.scores, method)


@pytest.mark.parametrize("method", ["lrp", "attnlrp", "abslrp", "conservative-lrp", "input-x-gradient", "gradcam"])
def test_one_sample_with_channels_last_is_a_row_of_a_batch(method: str) -> None:
    family = FAMILIES["timm_resnet"]
    model, inputs = family.model(), family.inputs(2).contiguous(memory_format=torch.channels_last)
    together = explain(model, inputs, method)
    alone = explain(model, inputs[:1].contiguous(memory_format=torch.channels_last), method, target=together.target[:1])
    assert_same(together.scores[:1], alone.scores, method)


@cases(TEXTS)
def test_special_tokens_and_padding_score_zero(method: str, family: Family) -> None:
    inputs = family.inputs(5)
    e = explain(family.model(), inputs, method)
    special = torch.zeros_like(inputs["input_ids"], dtype=torch.bool)
    for row, length in enumerate(LENGTHS):
        special[row, 0] = special[row, length - 1] = True
        silent = e.scores[row, [0, *range(length - 1, e.scores.shape[1])]]
        assert float(silent.abs().max()) == 0
    assert float(e.special.masked_fill(special, 0).abs().max()) == 0, "only special tokens are reported apart"
    assert (float(e.special.abs().max()) > 0) == (method != "shap"), "shap never hides them"


@pytest.fixture
def _exact_softmax(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hugging Face rounds its written-out softmax to float32 even in a float64 model, and Grad-CAM++ divides by what
    may nearly vanish: here the softmax stays as exact as its input."""
    original = F.softmax

    def softmax(input: Tensor, *given: Any, dtype: torch.dtype | None = None, **more: Any) -> Tensor:
        return original(input, *given, dtype=None if input.dtype == torch.float64 else dtype, **more)

    monkeypatch.setattr(F, "softmax", softmax)


@pytest.mark.usefixtures("_exact_softmax")
@cases(where=lambda method, family: family.explicit is not None)
def test_fused_and_written_out_attention_agree(method: str, family: Family) -> None:
    written_out = family.fresh()
    family.explicit(written_out)
    inputs = family.inputs(2)
    assert fused_calls(written_out, inputs) == 0 < fused_calls(family.model(), inputs), "the switch does nothing"
    fused = explain(family.model(), inputs, method)
    assert_same(explain(written_out, inputs, method).scores, fused.scores, method)


@cases(CORE)
def test_classes_at_once_equal_one_at_a_time(method: str, family: Family) -> None:
    model, inputs = family.model(), family.inputs(2)
    wanted = [4, 0, 2]
    together = explain(model, inputs, method, target=wanted)
    assert together.scores.shape[:2] == (2, 3)
    assert together.target.tolist() == [wanted] * 2
    for k, target in enumerate(wanted):
        alone = explain(model, inputs, method, target=target)
        assert alone.target.tolist() == [target] * 2
        assert_same(together.scores[:, k], alone.scores, method)


@one_per_family(CORE)
def test_ways_to_name_a_class_agree(method: str, family: Family) -> None:
    model, inputs = family.model(), family.inputs(2)
    names = [f"kind {i}" for i in range(CLASSES)]
    by_name = explain(model, inputs, method, target="kind 3", class_names=names).scores
    assert_same(explain(model, inputs, method, target=torch.tensor([3, 3])).scores, by_name, method)
    assert_same(explain(model, inputs, method, target=lambda logits: logits[:, 3]).scores, by_name, method)
    predicted = explain(model, inputs, method)
    assert predicted.target.tolist() == predicted.logits.argmax(1).tolist()
    assert_same(explain(model, inputs, method, target="top2").scores[:, 0], predicted.scores, method)


@cases(CORE)
@pytest.mark.slow
def test_one_class_per_sample(method: str, family: Family) -> None:
    model, inputs = family.model(), family.inputs(3)
    mixed = explain(model, inputs, method, target=torch.tensor([5, 0, 2]))
    for row, target in enumerate((5, 0, 2)):
        alone = explain(model, inputs, method, target=target)
        assert_same(mixed.scores[row : row + 1], alone.scores[row : row + 1], method)


@cases(TEXTS)
def test_padding_length_changes_nothing(method: str, family: Family) -> None:
    inputs = family.inputs(3)
    width = inputs["input_ids"].shape[1]
    extra = (0, LONGEST_TEXT - width)
    longer = {
        "input_ids": F.pad(inputs["input_ids"], extra, value=family.special_ids[2]),
        "attention_mask": F.pad(inputs["attention_mask"], extra),
    }
    short = explain(family.model(), inputs, method, target=1)
    long = explain(family.model(), longer, method, target=1)
    assert_same(long.scores[:, :width], short.scores, method)
    assert_same(long.special[:, :width], short.special, method)
    assert float(long.scores[:, width:].abs().max()) == 0


@cases()
def test_class_specific_or_not(method: str, family: Family) -> None:
    scores = explain(family.model(), family.inputs(5), method, target=[0, 3]).scores
    first, second = scores[:, 0], scores[:, 1]
    assert float(scores.abs().max()) > 0, "an empty map explains nothing"
    assert float(scores.min()) < 0 if METHODS[method].signed else float(scores.min()) >= 0
    if METHODS[method].class_specific:
        assert float((first - second).abs().max()) > 1e-3 * float(scores.abs().max())
    else:
        assert torch.equal(first, second)


@cases(CORE)
def test_repeats_exactly_and_leaves_the_generator(method: str, family: Family) -> None:
    model, inputs = family.model(), family.inputs(2)
    first = explain(model, inputs, method, seed=3)
    torch.rand(5)
    before = torch.get_rng_state()
    second = explain(model, inputs, method, seed=3)
    assert torch.equal(first.scores, second.scores)
    assert torch.equal(torch.get_rng_state(), before)
    assert second.seed == 3


@cases()
def test_logits_are_those_of_the_plain_model(method: str, family: Family) -> None:
    model, inputs = family.model(), family.inputs(3)
    with torch.no_grad():
        plain = call(model, inputs)
    seen = explain(model, inputs, method).logits
    assert float((seen - plain).abs().max()) <= 1e-12 * max(1.0, float(plain.abs().max()))
    assert not seen.requires_grad
