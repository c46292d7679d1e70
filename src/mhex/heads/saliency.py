"""Class maps from one forward pass: class weights of the channels times what flowed through the blocks."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache, reduce
from typing import Any, Literal, get_args
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import functional as F

from mhex.capture import full
from mhex.capture.precision import rows_product
from mhex.capture.threads import is_recording
from mhex.errors import ArgumentError, ArgumentTypeError, CaptureError, StaleError, unknown_name, warn
from mhex.heads.call_record import Call, HeadReading
from mhex.heads.explainer_block import BlockOutput, ExplainerBlock, channel_axis, wide_dtype

_EPSILON = 1e-8
_MOST = 4  # settings kept per block


def shares(part: Tensor) -> Tensor:
    """Share of each class in a channel, (n, C), of weights that are not negative; columns sum to at most 1."""
    return part / (part.sum(0, keepdim=True) + _EPSILON)


def adjusted_weights(matrix: Tensor, alpha: float, sharpness: float, negative_sharpness: float) -> Tensor:
    """`W+ [SS+ > ss+] - alpha W- [SS- > ss-]`, (n, C): what each channel says of each class.

    `matrix` is `W_eq` (n, C); a single row is read as the two classes `[-W; W]`. A class keeps a channel if its share
    of the channel's positive weights is above `ss+`, the sharpness, or that of the negative weights above `ss-`.
    """
    if matrix.shape[0] == 1:
        matrix = torch.cat([-matrix, matrix])
    positive, negative = matrix.clamp_min(0), (-matrix).clamp_min(0)
    sharp = positive.where(shares(positive) > sharpness, 0.0)
    return sharp - alpha * negative.where(shares(negative) > negative_sharpness, 0.0)


@dataclass
class _WeightCache:
    """What was computed from one state of a block's weights."""

    marks: tuple[Any, ...]
    prints: Tensor
    weights: dict[tuple[float, float, float], Tensor] = field(default_factory=dict)
    speaks: bool = True


_CACHES: WeakKeyDictionary[ExplainerBlock, _WeightCache] = WeakKeyDictionary()


@torch.no_grad()
def class_weights(
    block: ExplainerBlock,
    alpha: float,
    sharpness: float,
    negative_sharpness: float,
    changed: list[Tensor] | None = None,
) -> Tensor:
    """`adjusted_weights` of a block, at least float32; computed again when the block's weights have changed.

    To ask a device whether they have is to wait for it. With a list `changed`, weights kept from an earlier call are
    taken, and a bool is added to the list which is True if they are not those of the block any more.
    """
    key = (alpha, sharpness, negative_sharpness)
    weights = [linear.weight for linear in (block.w1, block.w2) if linear is not None]
    marks = tuple((w.data_ptr(), w._version, w.device, w.dtype) for w in weights)
    # Writing through `.data` leaves no mark, and memory is given out again: so the values are looked at, too. Of a
    # change that escapes this product, the weights below would not change by more than their rounding either.
    prints = torch.cat([full(w) @ _direction(w.shape[1], w.device, wide_dtype(w)) for w in weights])
    cache = _CACHES.get(block)
    if cache is not None and cache.marks == marks and changed is not None and key in cache.weights:
        changed.append((cache.prints != prints).any())
        return cache.weights[key]
    if is_recording():  # the device cannot be asked, and replays must see that weights changed
        return adjusted_weights(block.equivalent_matrix(), *key)
    if cache is None or cache.marks != marks or not torch.equal(cache.prints, prints):
        cache = _CACHES[block] = _WeightCache(marks, prints)
    if key not in cache.weights:
        matrix = block.equivalent_matrix()
        cache.speaks = bool(matrix.any())  # looked at here alone: it waits for the device
        while len(cache.weights) >= _MOST:
            cache.weights.pop(next(iter(cache.weights)))
        cache.weights[key] = adjusted_weights(matrix, *key)
    return cache.weights[key]


def forget_weights(blocks: Iterable[ExplainerBlock]) -> None:
    """Let `class_weights` compute those of these blocks again."""
    for block in blocks:
        _CACHES.pop(block, None)


def speaks(block: ExplainerBlock) -> bool:
    """False if the equivalent matrix that `class_weights` last read is 0, as before any training."""
    return (cache := _CACHES.get(block)) is None or cache.speaks


@lru_cache(maxsize=64)
def _direction(size: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """A fixed vector (C,) without pattern, so that no rearrangement of the weights has the same product."""
    return torch.arange(1, size + 1, device=device, dtype=dtype).sqrt().frac() + 0.5


Activation = Literal["gated", "gated_sum", "sum", "output", "relu_sum"]
Anchor = Literal["deep", "shallow"]
LayerScale = Literal["none", "max"]


def _check_number(name: str, value: Any, low: float, high: float, beside: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        words = f"of at least {low}" if high == math.inf else f"from {low} to {high}"
        raise ArgumentError(f"Expected {name} to be a number {words}{beside}, but got {value!r}.")


@dataclass(frozen=True)
class MapSettings:
    """How a map is made."""

    alpha: float  # weight of negative class weights, from 0 to 1
    sharpness: float | Literal["auto"]  # `ss+`; "auto" is `1/n + 0.1`
    negative_sharpness: float | Literal["auto"] | None  # `ss-`; None for the positive one
    layer_factor: float  # `rho`: each block counts so much less than the next one towards the anchor
    activation: Activation  # what the class weights multiply
    anchor: Anchor = "deep"  # whether the deepest or the shallowest block counts fully
    layer_scale: LayerScale = "none"  # "max" divides each block's map by its largest absolute value first
    active_only: bool = False  # leave out channels whose mean is not positive, which the head's ReLU hides

    def __post_init__(self) -> None:
        _check_number("alpha", self.alpha, 0, 1)
        for name in ("sharpness", "negative_sharpness"):
            if (value := getattr(self, name)) not in ("auto", None):
                _check_number(name, value, 0, math.inf, " or 'auto'")
        _check_number("layer_factor", self.layer_factor, 0, 1)
        if self.layer_factor == 0:
            raise ArgumentError("Expected layer_factor to be over 0, but got 0; blocks='last1' takes one block alone.")
        for name, kind in (("activation", Activation), ("anchor", Anchor), ("layer_scale", LayerScale)):
            if getattr(self, name) not in get_args(kind):
                raise unknown_name(name, str(getattr(self, name)), get_args(kind))
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


def settle(preset: str, **options: Any) -> MapSettings:
    """A preset with the options that are not None in place of its own."""
    if preset not in PRESETS:
        raise unknown_name("preset", str(preset), ("auto", *PRESETS))
    names = [field.name for field in fields(MapSettings)]
    for name in options:
        if name not in names:
            raise unknown_name("setting of maps", name, names)
    return replace(PRESETS[preset], **{name: value for name, value in options.items() if value is not None})


def automatic(text: bool, reading: HeadReading) -> tuple[str, Activation | None]:
    """Preset `"auto"`: a preset, and the activation to put in place of the preset's own, or None.

    Heads on text are read by `"text"`, heads that only look on at feature maps (B, C, H, W) by `"probe"`, all others by
    `"paper"`. Heads with `relu="pre"` pool `ReLU(x + r)`, so this is what their maps show.
    """
    heads, outputs = reading.heads, reading.call.blocks
    maps = all(output.shortcut.dim() == 4 and not heads[name].channels_last for name, output in outputs.items())
    preset = "text" if text else "probe" if maps and heads.settings.preset == "probe" else "paper"
    return preset, "relu_sum" if heads.settings.relu == "pre" else None


def thresholds(settings: MapSettings, num_classes: int) -> tuple[float, float]:
    """`ss+` and `ss-` as numbers. A single class has no rival, so its `"auto"` is 0."""
    auto = 0.0 if num_classes == 1 else 1 / num_classes + 0.1
    positive = auto if settings.sharpness == "auto" else float(settings.sharpness)
    negative = settings.negative_sharpness
    return positive, positive if negative is None else auto if negative == "auto" else float(negative)


def choose_blocks(choice: str | Sequence[str], names: Sequence[str]) -> list[str]:
    """The names that are meant by `"all"`, `"first3"`, `"last3"` (any number), by names, or by a text with commas."""
    if isinstance(choice, str) and choice not in names:
        if choice == "all":
            return list(names)
        if number := re.fullmatch(r"(first|last)([1-9]\d*)", choice):
            count = min(int(number[2]), len(names))
            return list(names[:count] if number[1] == "first" else names[len(names) - count :])
        choice = [name.strip() for name in choice.split(",")]
    choices = [choice] if isinstance(choice, str) else choice
    if not isinstance(choices, Sequence) or not all(isinstance(name, str) for name in choices):
        raise ArgumentTypeError(
            f"Expected blocks to be 'all', 'first3', 'last3' or a list of names, but got {choice!r}; there are: "
            f"{', '.join(names)}."
        )
    if not choices:
        raise ArgumentError(f"Expected at least one name in blocks=, out of: {', '.join(names)}.")
    for name in choices:
        if name not in names:
            raise unknown_name("block", name, names)
    return [name for name in names if name in set(choices)]


@torch.no_grad()
def block_maps(
    reading: HeadReading,
    names: Sequence[str],
    index: Tensor,
    settings: MapSettings,
    check_later: Callable[[Tensor, Callable[[], None]], None] | None = None,
) -> dict[str, Tensor]:
    """`M_c = sum_k w_(c,k) a_k` of each block, on its own grid, by name: (B, K, H, W), or (B, K, T) for tokens.

    The call that is read was recorded. `index` has class numbers (B, K); of a head with a single class score, 0 and 1
    are its two classes. With `check_later`, as of `Trace`, class weights of earlier calls are taken, and found out
    later if they no longer hold.
    """
    call, heads = reading.call, reading.heads
    positive, negative = thresholds(settings, heads.settings.num_classes)
    maps: dict[str, Tensor] = {}
    changed: list[Tensor] | None = None if check_later is None else []
    weights: list[Tensor] = []
    for name in names:
        if (observation := call.blocks.get(name)) is None:
            raise CaptureError(f"The block {name!r} did not run in this forward pass; leave it out with blocks=[...].")
        if observation.shortcut.shape[0] != index.shape[0]:
            raise CaptureError(
                f"Expected {index.shape[0]} samples along the first axis at {name!r}, but the tensor has the shape "
                f"{tuple(observation.shortcut.shape)}."
            )
        call.check(name, shortcut=observation.shortcut, branch=observation.branch)
        block = heads[name]
        weights.append(class_weights(block, settings.alpha, positive, negative, changed))
        rows = weights[-1][index]  # (B, K, C)
        if settings.active_only and block.coupling != "separate":  # which reads every channel: it has no ReLU
            rows = rows * (observation.pooled > 0)[:, None]
        output = _output(call, name) if settings.activation == "output" else None
        maps[name] = _block_map(block, observation, rows, settings.activation, output)
    if check_later is not None and changed:
        caches = [_CACHES.get(heads[name]) for name in names]  # and the prints in them

        def ask_again(read: Any = (weights, caches)) -> None:  # a recording reads them as long as it holds this
            forget_weights(heads[name] for name in names)
            raise StaleError("Weights of the heads have changed.")

        check_later(torch.stack(changed).any(), ask_again)
    if not any(speaks(heads[name]) for name in names):
        warn(
            "The heads say nothing yet (all class weights are 0): train them with scaffold.loss, or fit them with "
            "scaffold.fit."
        )
    return maps


def _block_map(
    block: ExplainerBlock, block_output: BlockOutput, rows: Tensor, activation: Activation, output: Tensor | None
) -> Tensor:
    x, r = block_output.shortcut, block_output.branch
    axis = channel_axis(x, block.channels, block.channels_last)
    if output is not None:
        return _contract(rows, output, axis)
    if activation == "relu_sum":
        return _contract(rows, F.relu(x + r), axis)
    # The gate does not vary over positions: it is moved to the weights, and the gated tensor is never made.
    gated = rows if activation == "sum" else rows * block_output.gate[:, None]
    by_shortcut = _contract(gated, x, axis)
    if activation == "gated" and block.gate_target == "shortcut":
        return by_shortcut
    return by_shortcut + _contract(gated if block.gate_target == "sum" else rows, r, axis)


def _contract(rows: Tensor, tensor: Tensor, axis: int) -> Tensor:
    """Sum over channels: (B, K, C) with (B, C, H, W), (B, H, W, C) or (B, T, C), to (B, K, H, W) or (B, K, T)."""
    if axis == 1:
        return rows_product(rows, tensor.flatten(2)).reshape(*rows.shape[:2], *tensor.shape[2:])
    return rows_product(rows, tensor.flatten(1, -2).mT).reshape(*rows.shape[:2], *tensor.shape[1:-1])


def _output(call: Call, name: str) -> Tensor:
    """What the unit returned, if that is what its addition became."""
    output = call.outputs.get(name)
    if output is None or output.shape != call.blocks[name].shortcut.shape:
        raise ArgumentError(
            f"activation='output' reads what a unit returns, and {name!r} returns something else than its gated sum; "
            "choose another activation, or other blocks with blocks=[...]."
        )
    call.check(name, output=output)
    return output


def layer_weights(count: int, factor: float, anchor: Anchor = "deep") -> list[float]:
    """`omega_l`, first block to last: `rho^(L-l)`, or `rho^(l-1)` if the shallowest counts fully."""
    powers = [factor**i for i in range(count)]
    return powers[::-1] if anchor == "deep" else powers


def combined(maps: Mapping[str, Tensor], settings: MapSettings, size: Sequence[int] | None = None) -> Tensor:
    """`M_c = sum_l omega_l Up(M_c(l))`.

    `maps` are (B, K, h, w) or (B, K, T) by name, first block to last; `size` is that of the input. The sum is on the
    blocks' own grid if all share one, and otherwise at the size of the input.
    """
    weights = layer_weights(len(maps), settings.layer_factor, settings.anchor)
    sums: dict[torch.Size, Tensor] = {}  # upsampling is linear, so maps of one grid are added first
    for weight, block_map in zip(weights, maps.values(), strict=True):
        grid = block_map.shape[2:]
        if settings.layer_scale == "max":
            largest = block_map.abs().amax(tuple(range(2, block_map.dim())), keepdim=True)
            block_map = torch.where(largest > 0, block_map / largest, 0.0)
        scaled = weight * block_map
        sums[grid] = sums[grid] + scaled if grid in sums else scaled
    parts = list(sums.values())
    if len(parts) > 1:
        goal = None if size is None else list(size)
        parts = [F.interpolate(part, size=goal, mode="bilinear", align_corners=False) for part in parts]
    return reduce(torch.add, parts)
