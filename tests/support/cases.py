"""Test cases made from the registry: every method with every family that it says it serves."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

import mhex
from mhex.capture import find_anatomy
from mhex.inputs import prepare
from mhex.methods import all_methods
from mhex.registry import Method
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
# Methods that see a model in the same way as others do: on families beyond these they are run by `-m slow`.
# Those of many passes cost most.
AGAIN = ("smoothgrad", "integrated-gradients", "occlusion", "rise", "shap", "scorecam")  # run the whole model again
_MANY_PASSES = ("timm_vit", "hf_bert", "plain_vit_shared")
_ELSEWHERE_SLOW: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("agcam", "attcat", "cdam", "gradtoken", "tokentm"), (*_MANY_PASSES, "hf_dinov2", "tv_vit")),
    **dict.fromkeys(("cdam-integrated", "cdam-smooth", "vit-cx"), _MANY_PASSES),
    **dict.fromkeys(AGAIN, ("timm_vit", "hf_bert", "plain_cnn")),
    **dict.fromkeys(("lrp", "abslrp"), ("timm_vit", "hf_bert", "plain_cnn", "tv_resnet")),
    **dict.fromkeys(("attnlrp", "conservative-lrp"), ("timm_vit", "hf_bert", "plain_cnn", "timm_swin")),
    **dict.fromkeys(("partial-lrp", "transformer-attribution"), ("timm_vit", "hf_bert", "plain_vit_shared")),
    "guided-backprop": ("tv_resnet", "plain_cnn"),
    **dict.fromkeys(("gradcam++", "eigencam", "scorecam"), ("timm_vit", "timm_swin", "plain_cnn")),
}
# Methods that ask for probabilities where there are some; their maps are of the image, or of the text.
SHARES = ("vit-cx", "rise", "shap")
# Methods without a gradient, which run changed inputs.
PERTURBING = (*SHARES, "occlusion", "scorecam")
# Guided backpropagation is defined for ReLU alone, which a method learns in the pass: it refuses all other families.
RELU_FAMILIES = ("tv_resnet", "timm_resnet", "plain_cnn", "encoder_vit", "tv_resnet_heads", "plain_cnn_heads")
# Methods whose backward pass carries relevance itself.
RELEVANCE = ("lrp", "partial-lrp", "transformer-attribution", "abslrp")
TEXTS = tuple(name for name, family in FAMILIES.items() if family.modality == "text")

# Options that make a method cheap enough to be called thousands of times; empty means its defaults.
QUICK: dict[str, dict[str, Any]] = {
    "cdam-smooth": {"n": 3},
    "cdam-integrated": {"steps": 4},
    "vit-cx": {"max_masks": 3, "batch_size": 4},
    "scorecam": {"max_channels": 4},
    "smoothgrad": {"n": 2},
    "integrated-gradients": {"steps": 3},
    "rise": {"n": 6},
    "shap": {"max_evals": 12},
}
# The same for images, and for texts without a tokenizer that would name the mask token.
QUICK_IMAGES: dict[str, dict[str, Any]] = {"occlusion": {"patch": 16}}
QUICK_TEXTS: dict[str, dict[str, Any]] = {name: {"fill": 3} for name in ("occlusion", "rise", "shap")}

SLOW = [pytest.mark.slow]
# Methods whose result is rounded by definition: the size of a step, times the edges that a cut can cross.
COARSE = {"attention-flow": 5e-5}


@functools.cache
def serving(family: str) -> tuple[str, ...]:
    """Names of the methods that do not refuse the family."""
    model = FAMILIES[family].model()
    anatomy = find_anatomy(model, prepare(model, FAMILIES[family].inputs(1)).batch)
    refused = () if family in RELU_FAMILIES else ("guided-backprop",)
    return tuple(name for name, method in METHODS.items() if not method.refusal(anatomy) and name not in refused)


def usual(method: str, family: str) -> bool:
    """Whether a method is run on a family in the default run."""
    return family in _ELSEWHERE_SLOW.get(method, FAMILIES)


def pairs(
    families: Iterable[str] | None = None,
    where: Callable[[Method, Family], bool] = lambda method, family: True,
) -> list[Any]:
    """All pairs of a method and a family that go together and satisfy `where`, as parameters of tests.

    Args:
        families: Names; all if None.
        where: Which pairs.
    """
    return [
        pytest.param(
            (method, FAMILIES[name]),
            id=f"{method}-{name}",
            marks=[] if usual(method, name) else SLOW,
        )
        for name in (FAMILIES if families is None else families)
        for method in serving(name)
        if where(METHODS[method], FAMILIES[name]) and (method in BESIDE_HEADS or not FAMILIES[name].heads)
    ]


def cases(
    families: Iterable[str] | None = None,
    where: Callable[[Method, Family], bool] = lambda method, family: True,
    cover: bool = False,
) -> pytest.MarkDecorator:
    """Parametrise `method` and `family` over `pairs`.

    Args:
        families: Names; all if None.
        where: Which pairs.
        cover: Whether only as many pairs as show every method and every family once are in the default run. It is for
            properties that depend on the method or on the family, not on their combination; the other pairs are slow.
    """
    parameters = [
        pytest.param(*parameter.values[0], id=parameter.id, marks=parameter.marks)
        for parameter in pairs(families, where)
    ]
    if cover:
        chosen = _cover([parameter.values for parameter in parameters if not parameter.marks])
        parameters = [
            parameter if parameter.values in chosen else pytest.param(*parameter.values, id=parameter.id, marks=SLOW)
            for parameter in parameters
        ]
    return pytest.mark.parametrize(("method", "family"), parameters)


def _cover(combinations: list[Any]) -> list[Any]:
    """Few of the pairs: each method with the family that has the fewest methods yet, then families without any."""
    chosen: list[Any] = []
    counts = dict.fromkeys((family.name for _, family in combinations), 0)
    for method in dict.fromkeys(method for method, _ in combinations):
        chosen.append(min((c for c in combinations if c[0] == method), key=lambda c: counts[c[1].name]))
        counts[chosen[-1][1].name] += 1
    for name in (name for name, count in counts.items() if not count):
        chosen.append(next(c for c in combinations if c[1].name == name))
    return chosen


def one_per_family(families: Iterable[str] | None = None, prefer: str = "gae") -> pytest.MarkDecorator:
    """Parametrise over families with a single method each: the most demanding one that serves it."""
    names = list(FAMILIES if families is None else families)
    chosen = [(prefer if prefer in serving(name) else "input-x-gradient", FAMILIES[name]) for name in names]
    return pytest.mark.parametrize(("method", "family"), [pytest.param(m, f, id=f"{m}-{f.name}") for m, f in chosen])


def explain(model: Any, inputs: Any, method: str, **options: Any) -> mhex.Explanation:
    """`mhex.explain` with the method's quick options."""
    return mhex.explain(model, inputs, method=method, **{**quick(method, inputs), **options})


def quick(method: str, inputs: Any) -> dict[str, Any]:
    """Options that make a method cheap on these inputs."""
    first = inputs[0] if isinstance(inputs, list) else inputs
    text = isinstance(first, str) or (isinstance(inputs, Mapping) and "pixel_values" not in inputs)
    return {**QUICK.get(method, {}), **(QUICK_TEXTS if text else QUICK_IMAGES).get(method, {})}


def named_methods(message: str) -> tuple[set[str], set[str]]:
    """Methods that a refusal names as able, and those that may be."""
    sure, unsure = re.search(r"Methods that can: ([^.]*)\.(?: Those that can if .*: ([^.]*)\.)?$", message).groups()
    return set(sure.split(", ")) - {"none"}, set((unsure or "").split(", ")) - {""}


def native_grid(method: str, size: tuple[int, int], features: tuple[int, int], blocks: tuple[int, int] | None) -> Any:
    """Height and width of a method's maps, on a model with these feature maps and patches.

    Args:
        method: Its name.
        size: Of the image.
        features: Grid of the feature maps.
        blocks: Grid of the patches, if there are blocks.
    """
    needs = METHODS[method].needs
    if method == "occlusion":  # windows that fill the image
        window = QUICK_IMAGES[method]["patch"]
        return size if size[0] % window or size[1] % window else (size[0] // window, size[1] // window)
    if "features" in needs.keep:
        return features
    if method == "conservative-lrp":  # tokens where there are some
        return blocks or size
    return blocks if needs.blocks and method not in PERTURBING else size


def assert_same(got: Tensor, wanted: Tensor, method: str, tolerance: float = 1e-9) -> None:
    """Equal up to `tolerance` of the largest value, or the rounding step of a coarse method."""
    assert got.shape == wanted.shape
    assert bool(torch.isfinite(got).all())
    error = float((got.double() - wanted.double()).abs().max())
    scale = float(wanted.abs().max())
    allowed = max(tolerance * scale, COARSE.get(method, 0.0))
    assert error <= allowed, f"{method}: differs by {error:.3g}, allowed {allowed:.3g} (largest value {scale:.3g})"
