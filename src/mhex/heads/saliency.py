"""Class maps from one forward pass: class weights of the channels times what flowed through the blocks."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from mhex.errors import ArgumentError, CaptureError, MhexWarning
from mhex.heads.block import Block, BlockOutput, channel_axis
from mhex.heads.calls import Call
from mhex.heads.equivalent import class_weights, speaks
from mhex.heads.map_settings import Activation, Anchor, MapSettings, thresholds
from mhex.heads.reading import Reading


@torch.no_grad()
def block_maps(reading: Reading, names: Sequence[str], index: Tensor, settings: MapSettings) -> dict[str, Tensor]:
    """`M_c = sum_k w_(c,k) a_k` of each block, on its own grid, by name: (B, K, H, W), or (B, K, T) for tokens.

    Args:
        reading: Of a recorded call of the host.
        names: Which blocks.
        index: Class numbers, (B, K); of a single-output head, 0 and 1 are its two classes.
        settings: How.
    """
    call, heads = reading.call, reading.heads
    positive, negative = thresholds(settings, heads.settings.num_classes)
    maps: dict[str, Tensor] = {}
    for name in names:
        if (seen := call.blocks.get(name)) is None:
            raise CaptureError(f"The block {name!r} did not run in this forward pass; leave it out with blocks=[...].")
        if seen.shortcut.shape[0] != index.shape[0]:
            raise CaptureError(
                f"Expected {index.shape[0]} samples along the first axis at {name!r}, but the tensor has the shape "
                f"{tuple(seen.shortcut.shape)}."
            )
        call.check(name, shortcut=seen.shortcut, branch=seen.branch)
        block = heads[name]
        rows = class_weights(block, settings.alpha, positive, negative)[index]  # (B, K, C)
        if settings.active_only and block.coupling != "separate":  # which reads every channel: it has no ReLU
            rows = rows * (seen.pooled > 0)[:, None]
        output = _output(call, name) if settings.activation == "output" else None
        maps[name] = _block_map(block, seen, rows, settings.activation, output)
    if not any(speaks(heads[name]) for name in names):
        warnings.warn(
            "The heads say nothing yet (all class weights are 0): train them with scaffold.loss, or fit them with "
            "scaffold.fit.",
            MhexWarning,
            stacklevel=2,
        )
    return maps


def _block_map(block: Block, seen: BlockOutput, rows: Tensor, activation: Activation, output: Tensor | None) -> Tensor:
    x, r = seen.shortcut, seen.branch
    axis = channel_axis(x, block.channels, block.channels_last)
    if output is not None:
        return _contract(rows, output, axis)
    if activation == "relu_sum":
        return _contract(rows, F.relu(x + r), axis)
    if activation == "sum":
        return _contract(rows, x, axis) + _contract(rows, r, axis)
    # The gate does not vary over positions: it is moved to the weights, and the gated tensor is never made.
    gated = rows * seen.gate[:, None]
    if block.gate_target == "sum":
        return _contract(gated, x, axis) + _contract(gated, r, axis)
    return _contract(gated, x, axis) if activation == "gated" else _contract(gated, x, axis) + _contract(rows, r, axis)


def _contract(rows: Tensor, tensor: Tensor, axis: int) -> Tensor:
    """Sum over channels: (B, K, C) with (B, C, H, W), (B, H, W, C) or (B, T, C), to (B, K, H, W) or (B, K, T)."""
    wide = torch.promote_types(rows.dtype, tensor.dtype)
    rows, tensor = rows.to(wide), tensor.to(wide)
    if axis == 1:
        return (rows @ tensor.flatten(2)).reshape(*rows.shape[:2], *tensor.shape[2:])
    return (rows @ tensor.flatten(1, -2).mT).reshape(*rows.shape[:2], *tensor.shape[1:-1])


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

    Args:
        maps: (B, K, h, w) or (B, K, T) by name, first block to last.
        settings: How.
        size: Height and width of the input.

    Returns:
        (B, K, h, w) on the blocks' own grid if all share one, at the size of the input otherwise; (B, K, T) for text.
    """
    weights = layer_weights(len(maps), settings.layer_factor, settings.anchor)
    sums: dict[torch.Size, Tensor] = {}  # upsampling is linear, so maps of one grid are added first
    for weight, one in zip(weights, maps.values(), strict=True):
        scaled = weight * (_by_largest(one) if settings.layer_scale == "max" else one)
        grid = one.shape[2:]
        sums[grid] = sums[grid] + scaled if grid in sums else scaled
    if len(sums) == 1:
        return next(iter(sums.values()))
    total: Tensor | None = None
    for one in sums.values():
        large = F.interpolate(one, size=None if size is None else list(size), mode="bilinear", align_corners=False)
        total = large if total is None else total.add_(large)
    assert total is not None
    return total


def _by_largest(one: Tensor) -> Tensor:
    largest = one.flatten(2).abs().amax(-1).reshape(*one.shape[:2], *[1] * (one.dim() - 2))
    return torch.where(largest > 0, one / largest, 0.0)
