"""Test cases made from the registry: every method with every family that it says it serves."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor

import mhex
from mhex.capture import find_anatomy
from mhex.inputs import prepare
from mhex.registry import Method, all_methods
from support.models import FAMILIES, Family

METHODS: dict[str, Method] = all_methods()

# One family of every kind, for properties that do not depend on the details of a family.
CORE = (
    "timm_vit",
    "timm_deit_distilled",
    "timm_map",
    "hf_dinov2",
    "hf_bert",
    "tv_vit",
    "timm_resnet",
    "timm_swin",
    "plain_cnn",
    "plain_vit_shared",
    "encoder_text",
    "tv_resnet_heads",
    "timm_vit_heads",
    "hf_bert_heads",
)
# On models with heads, beside the method that reads them: one of every kind of the others.
BESIDE_HEADS = ("mhex", "gae", "gradcam", "input-x-gradient")
# Methods that see a model in the same way as others do: on families beyond these they are run by `-m slow`, but for
# the second formulas. Those of many passes cost most.
_MANY_PASSES = ("timm_vit", "hf_bert", "plain_vit_shared")
_ELSEWHERE_SLOW: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("agcam", "attcat", "cdam", "gradtoken", "tokentm"), (*_MANY_PASSES, "hf_dinov2", "tv_vit")),
    **dict.fromkeys(("cdam-integrated", "cdam-smooth", "vit-cx"), _MANY_PASSES),
}
# Methods of blocks whose scores are a map of the image all the same, from probabilities, without a gradient.
PERTURBING = ("vit-cx",)
# Guided backpropagation is defined for ReLU alone, which a method learns in the pass: it refuses all other families.
RELU_FAMILIES = ("tv_resnet", "timm_resnet", "plain_cnn", "encoder_vit")
TEXTS = tuple(name for name, family in FAMILIES.items() if family.modality == "text")

# Options that make a method cheap enough to be called thousands of times; empty means its defaults.
QUICK: dict[str, dict[str, Any]] = {
    "cdam-smooth": {"n": 3},
    "cdam-integrated": {"steps": 4},
    "vit-cx": {"max_masks": 3, "batch_size": 4},
}

# Methods whose result is rounded by definition: the size of a step, times the edges that a cut can cross.
COARSE = {"attention-flow": 5e-5}


@functools.cache
def serving(family: str) -> tuple[str, ...]:
    """Names of the methods that do not refuse the family."""
    model = FAMILIES[family].model()
    anatomy = find_anatomy(model, prepare(model, FAMILIES[family].inputs(1)).batch)
    refused = () if family in RELU_FAMILIES else ("guided-backprop",)
    return tuple(name for name, method in METHODS.items() if not method.refusal(anatomy) and name not in refused)


def cases(
    families: Iterable[str] | None = None,
    where: Callable[[Method, Family], bool] = lambda method, family: True,
    spare: bool = True,
) -> pytest.MarkDecorator:
    """Parametrise `method` and `family` over all pairs that go together and satisfy `where`.

    Args:
        families: Names; all if None.
        where: Which pairs.
        spare: Whether methods that see a model as others do are slow on most families.
    """
    names = FAMILIES if families is None else families
    pairs = [
        pytest.param(
            method,
            FAMILIES[name],
            id=f"{method}-{name}",
            marks=[pytest.mark.slow] if spare and name not in _ELSEWHERE_SLOW.get(method, FAMILIES) else [],
        )
        for name in names
        for method in serving(name)
        if where(METHODS[method], FAMILIES[name]) and (method in BESIDE_HEADS or not FAMILIES[name].heads)
    ]
    return pytest.mark.parametrize(("method", "family"), pairs)


def one_per_family(families: Iterable[str] | None = None, prefer: str = "gae") -> pytest.MarkDecorator:
    """Parametrise over families with a single method each: the most demanding one that serves it."""
    names = list(FAMILIES if families is None else families)
    chosen = [(prefer if prefer in serving(name) else "input-x-gradient", FAMILIES[name]) for name in names]
    return pytest.mark.parametrize(("method", "family"), [pytest.param(m, f, id=f"{m}-{f.name}") for m, f in chosen])


def explain(model: Any, inputs: Any, method: str, **options: Any) -> mhex.Explanation:
    """`mhex.explain` with the method's quick options."""
    return mhex.explain(model, inputs, method=method, **{**QUICK.get(method, {}), **options})


def assert_same(got: Tensor, wanted: Tensor, method: str, tolerance: float = 1e-9) -> None:
    """Equal up to `tolerance` of the largest value, or the rounding step of a coarse method."""
    assert got.shape == wanted.shape
    assert bool(torch.isfinite(got).all())
    error = float((got.double() - wanted.double()).abs().max())
    scale = float(wanted.abs().max())
    allowed = max(tolerance * scale, COARSE.get(method, 0.0))
    assert error <= allowed, f"{method}: differs by {error:.3g}, allowed {allowed:.3g} (largest value {scale:.3g})"
