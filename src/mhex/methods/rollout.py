"""Attention rollout: head-averaged attention composed over blocks, with the skip connection as identity."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from mhex.capture import Needs, Trace
from mhex.capture.attention import EVERY
from mhex.errors import ArgumentError
from mhex.methods._shared import beyond_skips
from mhex.registry import register

Fusion = Literal["mean", "max", "min"]
_FUSIONS: dict[str, Callable[..., Tensor]] = {"mean": torch.mean, "max": torch.amax, "min": torch.amin}


@register(
    "rollout",
    title="Attention composed over all blocks, skip connections counted as identity.",
    paper="Abnar & Zuidema, ACL 2020, arXiv:2005.00928",
    needs=Needs(keep={"attention": "all"}),
    signed=False,
    class_specific=False,
    passes="F",
    budget=(1.6, "F"),
    use="As a quick, steady map of where information comes from, the same for all classes.",
    avoid="To tell classes apart, or on models without residual connections around attention.",
)
def rollout(trace: Trace, *, start_block: int = 1, head_fusion: Fusion = "mean", discard_ratio: float = 0.0) -> Tensor:
    r"""`S = w^T C`, `C = prod_{b=L}^{s} (mean_h A(b) + I) / 2`, multiplied as a row vector from the top.

    With another fusion of heads, or with small entries discarded, rows are scaled to sum to 1 again. Where the head
    reads one word alone, as of a decoder, what this word keeps by skip connections alone is left out of the map.

    Args:
        start_block: First block `s` of the product, counted from 1 (2 in the evaluations of Chefer et al.).
        head_fusion: How heads are joined: `"mean"`, `"max"` or `"min"`.
        discard_ratio: Share of the smallest entries of each fused attention that is set to 0 first.
    """
    if not isinstance(discard_ratio, (int, float)) or not 0 <= discard_ratio < 1:
        raise ArgumentError(f"Expected discard_ratio from 0 to below 1, but got {discard_ratio!r}.")
    row = share = trace.readout
    rows = trace.read_rows  # other rows of the last attention are not read
    for block in reversed(trace.blocks_from(start_block)):
        if head_fusion == "mean" and not discard_ratio:
            row, share, rows = (block.through(row, rows=rows).mean(1) + row) / 2, share / 2, EVERY
            continue
        fused = _FUSIONS[head_fusion](block.attention(), 1)
        matrix = (_discard(fused, trace.real, discard_ratio) + torch.eye(fused.shape[-1]).to(fused)) / 2
        total = matrix.sum(-1)
        row, share = (row[:, None] @ (matrix / total[..., None]))[:, 0], share / (2 * total)
    return beyond_skips(trace, row, share)


def _discard(attention: Tensor, real: Tensor, ratio: float) -> Tensor:
    """Set the smallest entries of each sample to 0, counting only tokens that are not padding; (B, N, N)."""
    entries = real[:, :, None] & real[:, None, :]
    remaining = torch.zeros_like(attention)
    for n, inside in enumerate(entries):
        values = attention[n][inside]
        order = values.argsort(stable=True)
        values[order[: int(ratio * len(values))]] = 0
        remaining[n][inside] = values
    return remaining
