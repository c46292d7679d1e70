"""How a map is made from heads: published settings, and what a user changes of them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from mhex.errors import ArgumentError, ArgumentTypeError, unknown_name
from mhex.heads.reading import Reading

Activation = Literal["gated", "gated_sum", "sum", "output", "relu_sum"]
Anchor = Literal["deep", "shallow"]
LayerScale = Literal["none", "max"]


def _check_number(name: str, value: Any, low: float, high: float, beside: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        words = f"of at least {low}" if high == math.inf else f"from {low} to {high}"
        raise ArgumentError(f"Expected {name} to be a number {words}{beside}, but got {value!r}.")


@dataclass(frozen=True)
class MapSettings:
    """How a map is made.

    Attributes:
        alpha: Weight of negative class weights, from 0 to 1.
        sharpness: `ss+`; `"auto"` is `1/n + 0.1`.
        negative_sharpness: `ss-`; None for the positive one.
        layer_factor: `rho`: each block counts so much less than the next one towards the anchor.
        activation: What the class weights multiply.
        anchor: Whether the deepest or the shallowest block counts fully.
        layer_scale: `"max"` divides each block's map by its largest absolute value first.
        active_only: Whether channels whose mean is not positive, which the head does not see, are left out. Heads
            that couple `"separate"` have no ReLU and see all channels.
    """

    alpha: float
    sharpness: float | Literal["auto"]
    negative_sharpness: float | Literal["auto"] | None
    layer_factor: float
    activation: Activation
    anchor: Anchor = "deep"
    layer_scale: LayerScale = "none"
    active_only: bool = False

    def __post_init__(self) -> None:
        _check_number("alpha", self.alpha, 0, 1)
        for name in ("sharpness", "negative_sharpness"):
            if (value := getattr(self, name)) not in ("auto", None):
                _check_number(name, value, 0, math.inf, " or 'auto'")
        _check_number("layer_factor", self.layer_factor, 0, 1)
        if self.layer_factor == 0:
            raise ArgumentError("Expected layer_factor to be over 0, but got 0; blocks='last1' takes one block alone.")
        for name, known in (("activation", Activation), ("anchor", Anchor), ("layer_scale", LayerScale)):
            if getattr(self, name) not in get_args(known):
                raise unknown_name(name, str(getattr(self, name)), get_args(known))
        if not isinstance(self.active_only, bool):
            raise ArgumentTypeError(f"Expected active_only to be True or False, but got {self.active_only!r}.")


PRESETS = {
    "paper": MapSettings(0.5, "auto", None, 0.9, "gated_sum"),
    "table3": MapSettings(1.0, "auto", 0.1, 0.9, "gated_sum"),
    "figure8": MapSettings(0.5, "auto", None, 0.8, "gated_sum"),
    # One of 120 settings tried on blood cells (validation) and pets (96 test photos): see docs/saliency.md.
    "probe": MapSettings(0.5, "auto", None, 0.7, "relu_sum"),
    "text": MapSettings(1.0, 0.0, None, 1.0, "sum"),
}


def settle(preset: str, **given: Any) -> MapSettings:
    """A preset with the settings that are given, not None, in place of its own."""
    if preset not in PRESETS:
        raise unknown_name("preset", str(preset), ("auto", *PRESETS))
    own = PRESETS[preset]
    known = [field.name for field in fields(own)]
    for name in given:
        if name not in known:
            raise unknown_name("setting of maps", name, known)
    return replace(own, **{name: value for name, value in given.items() if value is not None})


def automatic(text: bool, reading: Reading) -> tuple[str, Activation | None]:
    """Preset `"auto"`: a preset, and the activation to put in place of the preset's own, or None.

    Heads on text are read by `"text"`, heads that only look on at feature maps (B, C, H, W) by `"probe"`, all others by
    `"paper"`. Heads with `relu="pre"` pool `ReLU(x + r)`, so this is what their maps show: then the mean of a block's
    map at alpha 1 and sharpness 0 is the score of its head.

    Args:
        text: Whether the input is text.
        reading: Of a recorded call.
    """
    heads, seen = reading.heads, reading.call.blocks
    maps = all(one.shortcut.dim() == 4 and not heads[name].channels_last for name, one in seen.items())
    preset = "text" if text else "probe" if maps and heads.settings.preset == "probe" else "paper"
    return preset, "relu_sum" if heads.settings.relu == "pre" else None


def thresholds(settings: MapSettings, num_classes: int) -> tuple[float, float]:
    """`ss+` and `ss-` as numbers. A single class has no rival, so its `"auto"` is 0."""
    auto = 0.0 if num_classes == 1 else 1 / num_classes + 0.1
    given = settings.negative_sharpness
    positive = auto if settings.sharpness == "auto" else float(settings.sharpness)
    return positive, positive if given is None else auto if given == "auto" else float(given)


def choose_blocks(wanted: str | Sequence[str], names: Sequence[str]) -> list[str]:
    """Names of blocks, first to last.

    Args:
        wanted: `"all"`, `"first3"`, `"last3"` (any number), or names: a sequence, or one string with commas between.
        names: Those that there are, first to last.
    """
    if isinstance(wanted, str) and wanted not in names:
        if wanted == "all":
            return list(names)
        if number := re.fullmatch(r"(first|last)([1-9]\d*)", wanted):
            count = min(int(number[2]), len(names))
            return list(names[:count] if number[1] == "first" else names[len(names) - count :])
        wanted = [name.strip() for name in wanted.split(",")]
    chosen = [wanted] if isinstance(wanted, str) else wanted
    if not isinstance(chosen, Sequence) or not all(isinstance(name, str) for name in chosen):
        raise ArgumentTypeError(
            f"Expected blocks to be 'all', 'first3', 'last3' or a list of names, but got {wanted!r}; there are: "
            f"{', '.join(names)}."
        )
    if not chosen:
        raise ArgumentError(f"Expected at least one name in blocks=, out of: {', '.join(names)}.")
    for name in chosen:
        if name not in names:
            raise unknown_name("block", name, names)
    return [name for name in names if name in set(chosen)]
