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
from mhex.capture import Anatomy, find_anatomy
from mhex.inputs import prepare
from mhex.methods import all_methods
from mhex.registry import Method
from mhex.relevance import Composite
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
# One or two methods for everything that a family can show. In the default run these alone meet every family: the
# others see a model in the same way, and meet a few families each.
EVERYWHERE = (*("attention", "rollout", "attention-gradcam", "gae", "gradcam", "layercam", "input-x-gradient", "mhex"),)
# Methods that explain the probability of a class, not its score; the registry does not say so.
SHARES = ("vit-cx", "rise", "shap")
# Methods without a gradient, which run changed inputs.
PERTURBING = tuple(name for name, m in METHODS.items() if m.target == "scores" and not m.takes_gradients)
# Families whose activations are ReLU alone, which a method of ReLU networks learns in the pass: it refuses the others.
RELU_FAMILIES = ("tv_resnet", "timm_resnet", "plain_cnn", "encoder_vit", "tv_resnet_heads", "plain_cnn_heads")
TEXTS = tuple(name for name, family in FAMILIES.items() if family.modality == "text")

# For options that count passes: enough that a mistake shows, and few enough to be called thousands of times.
FEW = {"n": 4, "steps": 3, "max_masks": 3, "max_channels": 4, "max_evals": 12}
# Texts without a tokenizer have no mask token, so methods that hide words are given one.
HIDDEN_WORD = {"fill": 3}

SLOW = [pytest.mark.slow]
# Methods whose result is rounded by definition: the size of a step, times the edges that a cut can cross.
COARSE = {"attention-flow": 5e-5}


@functools.cache
def anatomy_of(family: str) -> Anatomy:
    """What the library finds in the model of a family."""
    model = FAMILIES[family].model()
    return find_anatomy(model, prepare(model, FAMILIES[family].inputs(1)).batch)


def _carries_relevance(method: Method) -> bool:
    rules = None if method.rules is None else method.rules(method.options, anatomy_of("timm_vit"))
    return isinstance(rules, Composite) and rules.flow == "relevance"


# Methods whose backward pass carries relevance itself.
RELEVANCE = tuple(name for name, method in METHODS.items() if _carries_relevance(method))


@functools.cache
def serving(family: str) -> tuple[str, ...]:
    """Names of the methods that do not refuse the family, with the options of `quick`."""
    return tuple(
        name
        for name, method in METHODS.items()
        if method.condition(anatomy_of(family)) is not None and (family in RELU_FAMILIES or not method.relu)
    )


def usual(method: str, family: str) -> bool:
    """Whether a method is run on a family in the default run."""
    return method in EVERYWHERE or family in _some_families(METHODS[method])


def _some_families(method: Method) -> tuple[str, ...]:
    """Families on which a method is run by default that sees a model as others do; those of many passes cost most."""
    if method.relu:
        return ("tv_resnet", "plain_cnn")
    if "features" in method.needs.keep:
        return ("timm_vit", "timm_swin", "plain_cnn")
    if not method.needs.blocks:
        return ("timm_vit", "hf_bert", "plain_cnn", *(("tv_resnet", "timm_swin") if method.rules else ()))
    once = method.target == "score" and method.rules is None
    return ("timm_vit", "hf_bert", "plain_vit_shared", *(("hf_dinov2", "tv_vit") if once else ()))


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
    slow_others: bool = False,
) -> pytest.MarkDecorator:
    """Parametrise `method` and `family` over `pairs`.

    Args:
        families: Names; all if None.
        where: Which pairs.
        cover: Whether to take only as many of the usual pairs as show every method and every family once: for
            properties that depend on the method or on the family, not on their combination.
        slow_others: Whether the pairs that `cover` leaves out are tested in the slow run.
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
            if parameter.values in chosen or slow_others
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
    if method not in METHODS:  # to be refused
        return {}
    options = METHODS[method].quick.get("text" if text else "image", {})
    few = {
        name: value
        for name, value in {**FEW, **(HIDDEN_WORD if text else {})}.items()
        if name in METHODS[method].options
    }
    return {**options, **few}


def named_methods(message: str) -> tuple[set[str], set[str]]:
    """Methods that a refusal names as able, and those that may be, on some condition."""
    sure, unsure = re.search(r"Methods that can: ([^.]*)\.((?: Those that can if [^:.]*: [^.]*\.)*)$", message).groups()
    maybe = ", ".join(re.findall(r"Those that can if [^:.]*: ([^.]*)\.", unsure))
    return set(sure.split(", ")) - {"none"}, set(maybe.split(", ")) - {""}


def native_grid(method: str, size: tuple[int, int], features: tuple[int, int], blocks: tuple[int, int] | None) -> Any:
    """Height and width of a method's maps, on a model with these feature maps and patches.

    Args:
        method: Its name.
        size: Of the image.
        features: Grid of the feature maps.
        blocks: Grid of the patches, if there are blocks.
    """
    needs = METHODS[method].needs
    if window := METHODS[method].quick.get("image", {}).get("patch"):  # windows that fill the image
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
