"""Class weights of the channels: the equivalent matrix after non-negativity and salience sharpness.

They do not depend on the input, so they are computed once per state of the weights and kept outside of the model.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from mhex.heads.block import Block, wide_dtype, widened

_EPSILON = 1e-8
_MOST = 4  # settings kept per block


def shares(part: Tensor) -> Tensor:
    """Share of each class in a channel, (n, C), of weights that are not negative; columns sum to at most 1."""
    return part / (part.sum(0, keepdim=True) + _EPSILON)


def adjusted_weights(matrix: Tensor, alpha: float, sharpness: float, negative_sharpness: float) -> Tensor:
    """`W+ [SS+ > ss+] - alpha W- [SS- > ss-]`: what each channel says of each class.

    Args:
        matrix: `W_eq`, (n, C). A single row is read as the two classes `[-W; W]`.
        alpha: Weight of the negative class weights.
        sharpness: `ss+`, the share of a channel's positive weights above which a class keeps the channel.
        negative_sharpness: `ss-`, the same for its negative weights.

    Returns:
        (n, C), or (2, C) for a single class.
    """
    if matrix.shape[0] == 1:
        matrix = torch.cat([-matrix, matrix])
    positive, negative = matrix.clamp_min(0), (-matrix).clamp_min(0)
    return _sharp(positive, sharpness) - alpha * _sharp(negative, negative_sharpness)


def _sharp(part: Tensor, threshold: float) -> Tensor:
    return part.where(shares(part) > threshold, 0.0)


@dataclass
class _Kept:
    """What was computed from one state of a block's weights."""

    marks: tuple[Any, ...]
    prints: Tensor
    weights: dict[tuple[float, float, float], Tensor] = field(default_factory=dict)
    speaks: bool = True


_KEPT: WeakKeyDictionary[Block, _Kept] = WeakKeyDictionary()


@torch.no_grad()
def class_weights(block: Block, alpha: float, sharpness: float, negative_sharpness: float) -> Tensor:
    """`adjusted_weights` of a block, at least float32; computed again when the block's weights have changed.

    Args:
        block: Of the heads.
        alpha: See `adjusted_weights`.
        sharpness: See `adjusted_weights`.
        negative_sharpness: See `adjusted_weights`.
    """
    used = [linear.weight for linear in (block.w1, block.w2) if linear is not None]
    marks = tuple((w.data_ptr(), w._version, w.device, w.dtype) for w in used)
    # Writing through `.data` leaves no mark, and memory is given out again: so the values are looked at, too. Of a
    # change that escapes this product, the weights below would not change by more than their rounding either.
    prints = torch.cat([widened(w) @ _direction(w.shape[1], w.device, wide_dtype(w)) for w in used])
    kept = _KEPT.get(block)
    if kept is None or kept.marks != marks or not torch.equal(kept.prints, prints):
        kept = _KEPT[block] = _Kept(marks, prints)
    key = (alpha, sharpness, negative_sharpness)
    if (found := kept.weights.get(key)) is None:
        matrix = block.equivalent_matrix()
        kept.speaks = bool(matrix.any())  # looked at here alone: it waits for the device
        found = adjusted_weights(matrix, *key)
        while len(kept.weights) >= _MOST:
            kept.weights.pop(next(iter(kept.weights)))
        kept.weights[key] = found
    return found


def speaks(block: Block) -> bool:
    """False if the equivalent matrix that `class_weights` last read is 0, as before any training."""
    return (kept := _KEPT.get(block)) is None or kept.speaks


@lru_cache(maxsize=64)
def _direction(size: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """A fixed vector (C,) without pattern, so that no rearrangement of the weights has the same product."""
    return torch.arange(1, size + 1, device=device, dtype=dtype).sqrt().frac() + 0.5
