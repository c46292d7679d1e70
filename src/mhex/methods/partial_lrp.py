"""Partial LRP: relevance of the attention probabilities of the last block."""

from collections.abc import Mapping
from typing import Any, Literal

from torch import Tensor

from mhex._settings import check_number
from mhex.capture import Anatomy, Needs, Trace
from mhex.methods._relevance import FLOOR, PUBLISHED_EPSILON, attention_relevance, check_gap, published_baseline
from mhex.registry import register
from mhex.relevance import AlphaBeta, Composite, relevance_rules


def _rules(options: Mapping[str, Any], anatomy: Anatomy) -> Composite:
    epsilon = options["epsilon"]
    check_number("epsilon", epsilon)
    if options["compat"] is not None:
        return published_baseline()
    return relevance_rules(AlphaBeta(1.0, epsilon), epsilon=epsilon, floor=FLOOR)


@register(
    "partial-lrp",
    title="LRP down to the attention probabilities of the last block.",
    paper="Voita et al., Analyzing Multi-Head Self-Attention, ACL 2019, arXiv:1905.09418",
    needs=Needs(keep={"attention": "last"}, graph="attention"),
    signed=False,
    passes="F + t",
    budget=(2.0, "F+B"),
    rules=_rules,
    use="To rank the heads of the last block (`diagnostics['head_relevance']`), and as a baseline.",
    avoid="To tell classes apart: its maps hardly depend on the class, in our hands as in publications.",
)
def partial_lrp(
    trace: Trace,
    y: Tensor,
    *,
    epsilon: float = 1e-6,
    compat: Literal["chefer-lrp"] | None = None,
    strict: bool = False,
    max_gap: float = 0.05,
) -> Tensor:
    r"""`S_j = mean_h sum_i (R^A_hij)^+`, `R^A` the relevance of the last block's attention, over the rows read out.

    `R^A = A ((R_z / z) v^T) / 2`: matrix products give half to each factor. Linear layers follow the alpha-1-beta-0
    rule with joint denominators, sums give each term its share, with the floor of `lrp`; queries that the head does not
    read get no relevance. `diagnostics["head_relevance"]` holds `sum_ij R^A_hij`, (B, H); what does not go through the
    last attention counts as `lost_to_biases`. The rows called partial LRP in publications since Chefer et al. (CVPR
    2021) come from code that divides by separate sums; `compat="chefer-lrp"` repeats it.

    Args:
        epsilon: Stabiliser.
        compat: `"chefer-lrp"` for the rules of that code, which do not conserve relevance; `epsilon` does not matter
            then.
        strict: Raise an error if more relevance than `max_gap` is lost or made on the way to the attention.
        max_gap: As a share of the relevance at the class score.
    """
    block = trace.blocks[-1]
    (z_relevance,) = trace.relevance(y, block.z, signed=False)
    check_gap(trace, strict, max_gap)
    epsilon = epsilon if compat is None else PUBLISHED_EPSILON
    relevance = attention_relevance(block, z_relevance, epsilon, trace.read_rows)
    trace.diagnostics["head_relevance"] = relevance.sum((2, 3))
    return relevance.clamp_min(0).sum(2).mean(1)
