"""Weights in eight bits: whole numbers and one scale per row, which read back as float32."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from mhex.errors import ArgumentError

SCALE = ".int8_scale"  # what the name of a tensor's scales ends with
_REACH = 127


def pack(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Matrices and kernels as int8 with a scale for each output (their first axis), and everything else as it is.

    The error of a weight is at most half a step, 1/254 of the largest weight of its row.

    Args:
        state: Tensors by name.

    Returns:
        The same names, and beside each packed tensor (O, ...) its scales (O,) under `NAME.int8_scale`.
    """
    packed: dict[str, Tensor] = {}
    for name, value in state.items():
        if not value.is_floating_point() or value.dim() < 2:
            packed[name] = value
        else:
            rows = value.detach().float().flatten(1)
            scale = (rows.abs().amax(1) / _REACH).clamp_min(torch.finfo(torch.float32).tiny)
            packed[name] = (rows / scale[:, None]).round().to(torch.int8).view_as(value)
            packed[name + SCALE] = scale
    return packed


def unpack(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What `pack` packed, as float32; tensors of other files come back as they are."""
    found = {name: value for name, value in state.items() if not name.endswith(SCALE)}
    for name, scale in state.items():
        if name.endswith(SCALE):
            own = name.removesuffix(SCALE)
            if own not in found or scale.shape != found[own].shape[:1] or found[own].dim() < 2:
                raise ArgumentError(
                    f"Expected packed weights with one scale for each of their rows, but {own!r} and its scales do not "
                    "go together: the file is damaged; make it again."
                )
            rows = found[own].float()
            found[own] = rows * scale.view(-1, *[1] * (rows.dim() - 1))
    return found
