"""What methods are helped with: repeatable noise, work shared by targets, one block's attention at a time."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

import mhex
from mhex.capture import Anatomy, AttentionRecord, Batch, Needs, Trace
from support.cases import METHODS
from support.models import CLASSES, enliven

# --- noise -----------------------------------------------------------------------------------------------------------


def trace(seed: int = 0, dtype: torch.dtype = torch.float32) -> Trace:
    made = Trace(torch.nn.Identity(), Anatomy("none", "image"), Batch("image"), Needs(), None)
    made.logits, made.seed = torch.zeros(1, 2, dtype=dtype), seed
    return made


@pytest.mark.parametrize("width", [1, 3, 5, 32, 33])
def test_noise_of_a_longer_text_begins_with_that_of_a_shorter(width: int) -> None:
    """Torch fills a short tensor in another way than a long one; here a prefix is a prefix at every length."""
    longest = trace().noise(2, 40, width)
    for length in range(1, 40):
        assert torch.equal(trace().noise(2, length, width), longest[:length])


def test_noise_depends_on_seed_and_step_alone() -> None:
    first = trace(3).noise(1, 4, 5)
    torch.rand(7)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(99)
        assert torch.equal(trace(3).noise(1, 4, 5), first)
    before = torch.get_rng_state()
    assert not torch.equal(trace(3).noise(2, 4, 5), first)
    assert not torch.equal(trace(4).noise(1, 4, 5), first)
    assert torch.equal(torch.get_rng_state(), before)
    assert trace(-5).noise(0, 3).shape == (3,)
    assert trace(10**30).noise(0, 3).shape == (3,)


def test_noise_is_standard_normal_whatever_the_dtype() -> None:
    """The same numbers for models of every dtype, and under every default dtype of torch."""
    drawn = trace(dtype=torch.float64).noise(0, 100, 100).float()
    assert float(drawn.mean()) == pytest.approx(0, abs=0.04)
    assert float(drawn.std()) == pytest.approx(1, abs=0.03)
    assert torch.equal(drawn, trace().noise(0, 100, 100).float())
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(trace(dtype=torch.float64).noise(0, 100, 100).float(), drawn)
    finally:
        torch.set_default_dtype(torch.float32)


# --- once ------------------------------------------------------------------------------------------------------------


def test_a_computation_runs_once_for_each_name() -> None:
    made, calls = trace(), []

    def compute() -> int:
        calls.append(1)
        return len(calls)

    assert [made.once("a", compute), made.once("a", compute), made.once("b", compute)] == [1, 1, 2]
    made.clear()
    assert made.once("a", compute) == 3, "nothing outlives the pass"


# --- memory ----------------------------------------------------------------------------------------------------------

ALL_BLOCKS = [m for m in METHODS if METHODS[m].needs.keep.get("attention") == "all" and m != "attention-flow"]
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "gradtoken": [{"aggregation": "rollout"}, {"propagation": "elementwise"}, {"center_keys": True}],
    "tokentm": [{"heads": "resolved"}, {"weights": "none"}],
}


@pytest.mark.parametrize(
    ("method", "options"), [(method, options) for method in ALL_BLOCKS for options in [{}, *VARIANTS.get(method, [])]]
)
@pytest.mark.parametrize("targets", [1, 3])
def test_one_attention_at_a_time(
    method: str, options: dict[str, Any], targets: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On long sequences (N > 4 d) no more than one block's (B, H, N, N) is alive; attention-flow needs them all."""
    from timm.models.vision_transformer import VisionTransformer

    model = enliven(
        VisionTransformer(img_size=48, patch_size=8, embed_dim=32, depth=4, num_heads=4, num_classes=CLASSES)
    ).eval()
    made: list[weakref.ref[Tensor]] = []
    most = 0
    plain = AttentionRecord.probabilities

    def counted(self: AttentionRecord, *args: Any, **kwargs: Any) -> Tensor:
        nonlocal most
        found = plain(self, *args, **kwargs)
        if found.shape[-2:] == (37, 37):
            made.append(weakref.ref(found))
            most = max(most, sum(one() is not None for one in made))
        return found

    monkeypatch.setattr(AttentionRecord, "probabilities", counted)
    mhex.explain(model, torch.randn(1, 3, 48, 48), method=method, target=list(range(targets)), **options)
    if method == "agcam":
        assert not made, "it reads logits, of the rows that are read"
        return
    assert len(made) >= 3
    assert most == 1
