"""Integrated CDAM: gradients of the tokens entering the last attention, integrated from zero tokens to those observed.

Only the last block and the head are run for each step. `Explanation.diagnostics["completeness_gap"]` says how far the
scores of all tokens are from adding up to what the score changes by.
"""

import torch
from torch import Tensor

from mhex._settings import check_count
from mhex.capture import Trace
from mhex.methods._paths import CDAM_PATH, Rule, Site, path_scores, quadrature, settle_site, tell_gap
from mhex.methods._shared import detach_float32
from mhex.registry import register
from mhex.targets import ResolvedTarget


@register(
    "cdam-integrated",
    title="CDAM with gradients integrated from zero tokens to those observed.",
    **CDAM_PATH,
    use="Where scores must add up: the completeness gap is reported.",
    avoid="When the price of many passes of the last block matters; `cdam` costs one.",
)
def cdam_integrated(
    trace: Trace,
    target: ResolvedTarget,
    *,
    steps: int = 50,
    rule: Rule = "gauss",
    site: Site = "tokens",
    block: int | None = None,
) -> Tensor:
    r"""`S_i = sum_j T_ij sum_k w_k dy(a_k T)/dT_ij`, nodes `a_k` and weights `w_k` of a quadrature rule on [0, 1].

    Over all tokens the scores add up to `y(T) - y(0)`, up to the error of the rule.

    Args:
        steps: Number of nodes (`"trapezoid"`: of intervals).
        rule: `"gauss"` (Gauss-Legendre, the most accurate), `"midpoint"`, `"trapezoid"`, `"right"` (the published
            sum) or `"left"`.
        site: As for `cdam`, but `"tokens"` by default on all models: a norm does not notice the length of what enters
            it, so a path from zero to the tokens before it has all its change at the very beginning.
        block: As for `cdam`.
    """
    check_count("steps", steps)
    nodes, weights = quadrature(rule, steps)
    source = settle_site(trace, site)
    tokens = detach_float32(trace.block.site(source))
    result = path_scores(
        trace, source, target, lambda step: nodes[step] * tokens, weights, "integrated CDAM", factor=tokens
    )
    begin = target.scores(trace.replay(**{source: torch.zeros_like(trace.block.site(source))})).detach()
    change = target.scores(trace.outcome).detach() - begin
    gap = result.masked_fill(~trace.real[:, None], 0.0).sum(-1) - change
    trace.cost["tails"] += 1
    tell_gap(trace, "cdam-integrated", gap, change)
    return result
