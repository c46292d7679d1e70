"""Sums, softmaxes and products are taken in at least float32, whatever the model computes in."""

from __future__ import annotations

import torch
from torch import Tensor


def full(tensor: Tensor) -> Tensor:
    """The tensor in at least float32; its graph, if it has one, goes on."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
