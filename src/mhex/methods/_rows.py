"""Products over blocks, applied as row vectors from the top: one block's matrices at a time."""

from __future__ import annotations

from torch import Tensor

from mhex.capture import Trace


def through_heads(row: Tensor, matrices: Tensor) -> Tensor:
    """`r mean_h(M_h)` without forming the mean.

    Args:
        row: `r`, (B, N).
        matrices: `M`, (B, H, N, N).

    Returns:
        (B, N).
    """
    return (row[:, None, None, :] @ matrices)[:, :, 0].mean(1)


def beyond_skips(trace: Trace, row: Tensor, share: Tensor) -> Tensor:
    """The row without what a word that the head reads alone keeps of itself by skip connections alone.

    A decoder reads its last word, and the identity of all blocks would give it most of the map whatever it says. Where
    the head reads several tokens, or a class token, which is in no map, nothing is different.

    Args:
        trace: The observed pass.
        row: Scores, (B, N).
        share: What skip connections alone hand from the read-out to each token, (B, N).

    Returns:
        (B, N).
    """
    return row - share.where((trace.readout == 1) & trace.spatial, 0.0)
