"""Scaling scores for the eye and for metrics that take them between 0 and 1."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from mhex.errors import unknown_name

Normalisation = Literal["auto", "minmax", "percentile", "relu_max", "none"]
_PERCENTILES = (0.01, 0.99)


def normalize(scores: Tensor, how: Normalisation, signed: bool, counted: Tensor | None = None) -> Tensor:
    """Each row scaled by itself; rows without any spread become zero.

    Args:
        scores: (..., P), P pixels or tokens.
        how: See `Explanation.normalized`.
        signed: Whether scores below zero mean something, for `"auto"`.
        counted: Bool (..., P), for texts: where the scores count. Elsewhere the result is 0.
    """
    if how not in get_args(Normalisation):
        raise unknown_name("normalisation", str(how), get_args(Normalisation))
    if how == "none":
        return scores
    if how == "auto":
        return _by_sign(scores, signed, text=counted is not None)
    if how == "relu_max":
        low, high = torch.zeros_like(scores[..., :1]), _extreme(scores, counted, largest=True)
    elif how == "percentile":
        low, high = _percentiles(scores, counted)
    else:
        low, high = _extreme(scores, counted, largest=False), _extreme(scores, counted, largest=True)
    scaled = _spanned(scores, low, high).clamp(0, 1)
    return scaled if counted is None else scaled.where(counted, 0.0)


def _by_sign(scores: Tensor, signed: bool, text: bool) -> Tensor:
    if signed:
        scale = scores.abs().amax(-1, keepdim=True)
        return torch.where(scale > 0, scores / scale, 0.0)
    # Unsigned text scores are 0 at special tokens and padding and non-negative elsewhere: 0 is their floor.
    low = torch.zeros_like(scores[..., :1]) if text else scores.amin(-1, keepdim=True)
    return _spanned(scores, low, scores.amax(-1, keepdim=True))


def _spanned(scores: Tensor, low: Tensor, high: Tensor) -> Tensor:
    span = high - low
    # Of a row in which nothing counts, the ends are infinite.
    return torch.where((span > 0) & span.isfinite(), (scores - low) / span, 0.0)


def _extreme(scores: Tensor, counted: Tensor | None, largest: bool) -> Tensor:
    outside = -torch.inf if largest else torch.inf
    rows = scores if counted is None else scores.where(counted, outside)
    return rows.amax(-1, keepdim=True) if largest else rows.amin(-1, keepdim=True)


def _percentiles(scores: Tensor, counted: Tensor | None) -> tuple[Tensor, Tensor]:
    """Ends (..., 1); row by row, because rows of text differ in length and `quantile` limits the size of a tensor."""
    rows = scores.reshape(-1, scores.shape[-1])
    masks = [slice(None)] * len(rows) if counted is None else list(counted.reshape(rows.shape))
    wanted = torch.tensor(_PERCENTILES, dtype=rows.dtype, device=rows.device)
    nothing = torch.zeros_like(wanted)
    ends = [
        part.quantile(wanted) if (part := row[mask]).numel() else nothing for row, mask in zip(rows, masks, strict=True)
    ]
    both = torch.stack(ends).reshape(*scores.shape[:-1], 2)
    return both[..., :1], both[..., 1:]
