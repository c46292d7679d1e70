"""Products over blocks, applied as row vectors from the top: one block's matrices at a time."""

from __future__ import annotations

from torch import Tensor


def through_heads(row: Tensor, matrices: Tensor) -> Tensor:
    """`r mean_h(M_h)` without forming the mean.

    Args:
        row: `r`, (B, N).
        matrices: `M`, (B, H, N, N).

    Returns:
        (B, N).
    """
    return (row[:, None, None, :] @ matrices)[:, :, 0].mean(1)
