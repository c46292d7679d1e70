"""Ways of asking the same question that must give the same answer, for every method and family it serves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from support.cases import CORE, TEXTS, assert_same, cases, explain, one_per_family
from support.models import CLASSES, FAMILIES, LONGEST_TEXT, Family, fused_calls


@pytest.mark.parametrize("method", ["lrp", "attnlrp", "abslrp", "conservative-lrp", "input-x-gradient", "gradcam"])
def test_one_sample_with_channels_last_is_a_row_of_a_batch(method: str) -> None:
    family = FAMILIES["timm_resnet"]
    model, inputs = family.model(), family.inputs(2).contiguous(memory_format=torch.channels_last)
    together = explain(model, inputs, method)
    alone = explain(model, inputs[:1].contiguous(memory_format=torch.channels_last), method, target=together.target[:1])
    assert_same(together.scores[:1], alone.scores, method)


@pytest.fixture
def _exact_softmax(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hugging Face rounds its written-out softmax to float32 even in a float64 model, and Grad-CAM++ divides by what
    may nearly vanish: here the softmax stays as exact as its input."""
    original = F.softmax

    def softmax(input: Tensor, *given: Any, dtype: torch.dtype | None = None, **more: Any) -> Tensor:
        return original(input, *given, dtype=None if input.dtype == torch.float64 else dtype, **more)

    monkeypatch.setattr(F, "softmax", softmax)


@pytest.mark.usefixtures("_exact_softmax")
@cases(where=lambda method, family: family.explicit is not None, cover=True)
def test_fused_and_written_out_attention_agree(method: str, family: Family) -> None:
    written_out = family.fresh()
    family.explicit(written_out)
    inputs = family.inputs(2)
    assert fused_calls(written_out, inputs) == 0 < fused_calls(family.model(), inputs), "the switch does nothing"
    fused = explain(family.model(), inputs, method)
    assert_same(explain(written_out, inputs, method).scores, fused.scores, method)


@cases(CORE, cover=True)
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


@cases(CORE, cover=True)
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


@cases(CORE, cover=True)
def test_repeats_exactly_and_leaves_the_generator(method: str, family: Family) -> None:
    model, inputs = family.model(), family.inputs(2)
    first = explain(model, inputs, method, seed=3)
    torch.rand(5)
    before = torch.get_rng_state()
    second = explain(model, inputs, method, seed=3)
    assert torch.equal(first.scores, second.scores)
    assert torch.equal(torch.get_rng_state(), before)
    assert second.seed == 3
