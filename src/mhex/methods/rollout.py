"""Attention rollout: head-averaged attention composed over blocks, with the skip connection as identity."""

from __future__ import annotations

from torch import Tensor

from mhex.capture import Needs, Trace
from mhex.methods._rows import through_heads
from mhex.registry import register


@register(
    "rollout",
    title="Attention composed over all blocks, skip connections counted as identity.",
    paper="Abnar & Zuidema, ACL 2020, arXiv:2005.00928",
    modalities=("image", "text"),
    needs=Needs(keep={"attention": "all"}),
    signed=False,
    class_specific=False,
    passes="F",
    budget=(1.6, "F"),
)
def rollout(trace: Trace, *, start_block: int = 1) -> Tensor:
    r"""`S = w^T C`, `C = prod_{b=L}^{s} (mean_h A(b) + I) / 2`, multiplied as a row vector from the top.

    Args:
        trace: The observed pass.
        start_block: First block `s` of the product, counted from 1 (2 in the evaluations of Chefer et al.).
    """
    row = trace.readout
    for block in reversed(trace.blocks_from(start_block)):
        row = (through_heads(row, block.attention()) + row) / 2
    return row
