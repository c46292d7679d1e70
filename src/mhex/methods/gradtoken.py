"""GradToken: keys of the last block against the class gradient of the query, spread by the attention below."""

from collections.abc import Mapping
from functools import reduce
from typing import Any, Literal

import torch
from torch import Tensor

from mhex.capture import Anatomy, BlockTrace, Needs, Trace
from mhex.methods._shared import detach_float32
from mhex.registry import register

Propagation = Literal["matrix", "elementwise"]
_ALL = Needs(keep={"attention": "all"}, graph="query", start="last")
_LAST = Needs(keep={"attention": "last"}, graph="query")


def _reads(options: Mapping[str, Any], anatomy: Anatomy) -> Needs:
    bottom = options["start_block"] == len(anatomy.blocks)
    return _LAST if options["aggregation"] == "none" or bottom else _ALL


@register(
    "gradtoken",
    title="Keys of the last block against the class gradient of the query, spread by the attention below.",
    paper="Cheng, Liang, Lu & Cheung, GradToken, Neural Networks 181, 2025, doi:10.1016/j.neunet.2024.106837",
    needs=_ALL,
    signed=False,
    passes="F + t",
    budget=(1.6, "F"),
    adapt=_reads,
    use="ViTs when a class-specific map for little more than a forward pass is wanted.",
    avoid="Where publications must be matched to the digit: there is no public code to compare with.",
)
def gradtoken(
    trace: Trace,
    y: Tensor,
    *,
    aggregation: Literal["average", "rollout", "none"] = "average",
    propagation: Propagation = "matrix",
    head_integration: Literal["relu_average", "average"] = "relu_average",
    start_block: int = 1,
    center_keys: bool = False,
    per_head: bool = False,
) -> Tensor:
    r"""`S = 1/H sum_h (P M_h)^+`, `M_hj = k_hj G_h` at patches or words and 0 elsewhere, `G_h = sum_i dy/dq_hi`.

    Queries `q` and keys `k` are those of the last block.

    `P` joins the head-averaged attention `A(b)` of the blocks `b = s ... L-1` below: their mean (`"average"`), or the
    product of `I + A(b)` (`"rollout"`), multiplied as a matrix or element by element with its read-out row.

    Args:
        aggregation: `"average"`, `"rollout"`, or `"none"` for `M` as it is.
        propagation: `"matrix"` (in a rollout the lowest block is applied last) or `"elementwise"`.
        head_integration: `"relu_average"`, or `"average"`, which keeps signs.
        start_block: Lowest block `s`, counted from 1; the last block is the same as no aggregation.
        center_keys: Subtract the read-out's mean key first: a bias of keys, which the model does not notice, shifts
            `M` by the same amount everywhere.
        per_head: Also give the map of each head, as `Explanation.layers`.
    """
    record = trace.blocks[-1].attention_record
    (query_gradient,) = trace.gradient(y, record.query)
    keys = detach_float32(record.keys())
    if center_keys:
        row = trace.readout[:, None, None] @ trace.blocks[-1].attention()  # (B, H, 1, N)
        keys = keys - row @ keys
    # Rows of the gradient are zero at tokens that the head does not read.
    relevance = (keys @ detach_float32(query_gradient).sum(2)[..., None])[..., 0]  # (B, H, N)
    relevance = relevance * trace.spatial[:, None]
    below = trace.blocks_from(start_block)[:-1]
    if below and aggregation != "none":
        spread = _averaged if aggregation == "average" else _rolled_out
        relevance = spread(trace, below, relevance, propagation)
    trace.signed = head_integration == "average"
    if head_integration == "relu_average":
        relevance = relevance.clamp_min(0)
    if per_head:
        trace.layers = {f"head {head + 1}": relevance[:, head] for head in range(relevance.shape[1])}
    return relevance.mean(1)


def _averaged(trace: Trace, blocks: list[BlockTrace], relevance: Tensor, how: Propagation) -> Tensor:
    """`P` is the mean of the blocks' attentions; (B, H, N)."""
    if how == "elementwise":
        rows = trace.once("row", lambda: torch.stack([b.through(trace.readout).mean(1) for b in blocks]))
        return rows.mean(0)[:, None] * relevance
    means = (block.mean_attention() for block in blocks)  # one after the other: all at once take much memory
    return relevance @ trace.once("mean", lambda: reduce(torch.add, means) / len(blocks)).mT


def _rolled_out(trace: Trace, blocks: list[BlockTrace], relevance: Tensor, how: Propagation) -> Tensor:
    """`P` is the product of `I + A(b)`, applied from the top block on; (B, H, N)."""
    if how == "elementwise":
        row = trace.readout
        for block in reversed(blocks):
            row = row + block.through(row).mean(1)
        return row[:, None] * relevance
    for block in reversed(blocks):
        relevance = relevance + relevance @ block.mean_attention().mT
    return relevance
