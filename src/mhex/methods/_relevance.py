"""What the methods of relevance propagation share: where they read, their checks, and the conservation of relevance."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mhex._settings import check_number
from mhex.capture import Anatomy, BlockTrace, Needs, Trace, full
from mhex.errors import ArgumentError, CaptureError, UnsupportedModelError, warn
from mhex.relevance import Box, Composite, Separate, relevance_rules

INPUT = Needs(keep={"input": "last"}, graph="input")
# What methods of one modified backward pass down to the input register with.
ONE_BACKWARD: dict[str, Any] = {"needs": INPUT, "signed": True, "passes": "F + B", "budget": (2.0, "F+B")}
_WORTH_TELLING = 0.5  # of the relevance
TOKENS = Needs(keep={"block_input": "all"}, graph="block_input")
FLOOR = 0.05  # of the sizes of terms, for what their sum is divided by
PUBLISHED_EPSILON = 1e-9


def published_baseline(boxed: bool = False) -> Composite:
    """The LRP that Chefer et al. (CVPR 2021) compare with, by their code; boxed where the first layer has that rule."""
    entrance = Box(PUBLISHED_EPSILON) if boxed else None
    return relevance_rules(Separate(PUBLISHED_EPSILON), "ratio", entrance, PUBLISHED_EPSILON)


def where_read(options: Mapping[str, Any], anatomy: Anatomy) -> Needs:
    """Reads the tokens that enter the first block, or the input where there are no blocks or the user says so."""
    level = options["level"]
    if level == "tokens" and not anatomy.blocks:
        raise ArgumentError(f"Expected level='input' for this {anatomy.family}, because it has no blocks of tokens.")
    return TOKENS if level != "input" and anatomy.blocks else INPUT


def read_relevance(trace: Trace, y: Tensor, strict: bool, max_gap: float, signed: bool = True) -> Tensor:
    """Relevance where the method reads, summed over channels: tokens (B, N), or a map of pixels (B, H, W)."""
    tokens = bool(trace.blocks and trace.blocks[0].shows("block_input"))
    at = trace.blocks[0].site("block_input") if tokens else trace.input
    (relevance,) = trace.relevance(y, at, signed=signed)
    trace.check_later(~relevance.isfinite().flatten(1).all(1).any(), _refuse_infinity)
    check_gap(trace, strict, max_gap)
    return relevance.sum(1) if not tokens and trace.batch.modality == "image" else relevance.sum(-1)


def _refuse_infinity() -> None:
    reason = "relevance grows beyond all numbers on the way, divided by sums of the model that are near 0"
    raise UnsupportedModelError(
        f"Expected relevance that stays finite, but {reason}; take positive contributions alone (lrp with "
        "rule='alphabeta'), or conservative-lrp.",
        reason,
    )


def check_gap(trace: Trace, strict: bool, max_gap: float) -> None:
    """Tell of a result whose relevance was lost or made on the way, or refuse it if the user is strict."""
    check_number("max_gap", max_gap)
    gap = trace.diagnostics["conservation_gap"].max()

    def react() -> None:
        loss = f"{float(gap):.3g} times the relevance was lost or made on the way, besides what biases took"
        if strict:
            raise CaptureError(
                f"Expected relevance to be conserved up to {max_gap:g} of it, but {loss}; leave strict out, or allow "
                "more with max_gap=."
            )
        warn(f"For some sample {loss}, so its map says little; see Explanation.diagnostics.")

    trace.check_later(~(gap <= (max_gap if strict else max(_WORTH_TELLING, max_gap))), react)


def attention_relevance(block: BlockTrace, z_relevance: Tensor, epsilon: float, rows: slice = slice(None)) -> Tensor:
    """`R^A = A ((R_z / z) v^T) / 2`, (B, H, N, N), of `R_z` (B, H, N, d): half of what enters the product."""
    z = full(block.z.detach())[:, :, rows]
    s = full(z_relevance)[:, :, rows] / torch.where(z < 0, z - epsilon, z + epsilon)
    return block.attention(rows) * block.attention_gradient(s.nan_to_num(0.0, 0.0, 0.0)) / 2
