"""Transformer attribution: rollout of class gradients times the LRP relevance of attention."""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from mhex._settings import check_number
from mhex.capture import Anatomy, Needs, Trace
from mhex.methods._relevance import attention_relevance, check_gap
from mhex.methods._shared import beyond_skips
from mhex.registry import register
from mhex.relevance import AlphaBeta, Composite, relevance_rules
from mhex.targets import ResolvedTarget


def _rules(options: Mapping[str, Any], anatomy: Anatomy) -> Composite:
    check_number("epsilon", options["epsilon"])
    return relevance_rules(AlphaBeta(1.0, options["epsilon"]), "renormalised", epsilon=options["epsilon"])


@register(
    "transformer-attribution",
    title="Rollout of attention's LRP relevance times its class gradient.",
    paper="Chefer, Gur & Wolf, Transformer Interpretability Beyond Attention Visualization, CVPR 2021, "
    "arXiv:2012.09838",
    needs=Needs(keep={"block_input": "all", "attention": "all"}, graph="block_input"),
    signed=False,
    passes="2 F + 2 B",
    budget=(5.0, "F+B"),
    target="scores",
    rules=_rules,
    use="A strong class-specific map of ViTs, and the number to compare with in much of the literature.",
    avoid="Where cost or memory matters: it needs two passes and two graphs, and `gae` gives much the same map for "
    "half of that. It is unsigned: evidence against a class is not shown.",
)
def transformer_attribution(
    trace: Trace,
    target: ResolvedTarget,
    *,
    start_block: int = 1,
    compat: Literal["bert"] | None = None,
    epsilon: float = 1e-6,
    strict: bool = False,
    max_gap: float = 0.05,
) -> Tensor:
    r"""`S = w^T prod_{b=L}^{s} (I + mean_h (dy/dA(b) * R^A(b))^+)`, multiplied as a row vector from the top.

    `R^A` is the relevance of attention by the alpha-1-beta-0 rule with joint denominators, sums renormalised within
    each sample. The published code sums over the batch and is right for one sample at a time only; this is right for
    any batch. Where the head reads one word alone, as of a decoder, what this word keeps by skip connections alone is
    left out of the map: it is 1 whatever the word says, and would be most of the map.

    Args:
        start_block: First block `s` of the product, counted from 1; published evaluations of ViTs use 2.
        compat: `"bert"` repeats the published code for text: rows of `I + ...` are scaled to sum 1, and only the last
            block enters.
        epsilon: Stabiliser.
        strict: Raise an error if more relevance than `max_gap` is lost or made on the way to the first block.
        max_gap: As a share of the relevance at the class score.
    """
    blocks = trace.blocks_from(len(trace.blocks) if compat == "bert" else start_block)
    first = len(trace.blocks) - len(blocks)
    rows, diagnostics = [], []
    readout = trace.readout  # of an unknown model it is measured by a pass of its own, which must not meet another
    with trace.plain() as plain:
        for k in range(target.count):
            zs = [block.z for block in blocks]
            y, at = target.score(trace.outcome, k), trace.blocks[0].site("block_input")
            _, *relevances = trace.relevance(y, at, *zs, signed=False)
            check_gap(trace, strict, max_gap)
            diagnostics.append(dict(trace.diagnostics))
            gradients = plain.gradient(target.score(plain.outcome, k), *(block.z for block in plain.blocks[first:]))
            row = share = readout
            for block, gradient, relevance in zip(
                reversed(blocks), reversed(gradients), reversed(relevances), strict=True
            ):
                weighted = block.attention_gradient(gradient) * attention_relevance(block, relevance, epsilon)
                weighted = weighted.clamp_min(0)
                if compat == "bert":  # rows of I + ... sum to 1
                    total = 1 + weighted.mean(1).sum(-1)
                    row, share = row / total, share / total
                row = row + (row[:, None, None] @ weighted)[:, :, 0].mean(1)
            rows.append(beyond_skips(trace, row, share))
    trace.cost["forwards"] += 1
    trace.cost["backwards"] += target.count
    trace.diagnostics |= {name: torch.stack([row[name] for row in diagnostics], 1) for name in diagnostics[0]}
    return torch.stack(rows, 1)
