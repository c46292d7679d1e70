"""Integrated CDAM: gradients of the tokens entering the last attention, integrated from zero tokens to those observed.

Only the last block and the head are run for each step. `Explanation.diagnostics["completeness_gap"]` says how far the
scores of all tokens are from adding up to what the score changes by.
"""

from __future__ import annotations

import warnings
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from mhex.capture import Needs, Trace
from mhex.errors import ArgumentError, MhexWarning
from mhex.methods._tokens import Site, check_count, fixed, path_scores, settle_site
from mhex.registry import register
from mhex.targets import ResolvedTarget

_WORTH_TELLING = 0.2  # gap beside the change of the score
Rule = Literal["gauss", "midpoint", "trapezoid", "right", "left"]


@register(
    "cdam-integrated",
    title="CDAM with gradients integrated from zero tokens to those observed.",
    paper="Brocki, Binda & Chung, Class-Discriminative Attention Maps for Vision Transformers, 2023, arXiv:2312.02364",
    modalities=("image", "text"),
    needs=Needs(keep={"block_input": "last", "tokens": "last"}),
    signed=True,
    class_specific=True,
    passes="F + n t",
    budget=(14.0, "F"),
    target="scores",
)
def cdam_integrated(
    trace: Trace, target: ResolvedTarget, *, steps: int = 50, rule: Rule = "gauss", site: Site = "tokens"
) -> Tensor:
    r"""`S_i = sum_j T_ij sum_k w_k dy(a_k T)/dT_ij`, nodes `a_k` and weights `w_k` of a quadrature rule on [0, 1].

    Over all tokens the scores add up to `y(T) - y(0)`, up to the error of the rule.

    Args:
        trace: The observed pass.
        target: What is explained.
        steps: Number of nodes (`"trapezoid"`: of intervals).
        rule: `"gauss"` (Gauss-Legendre, the most accurate), `"midpoint"`, `"trapezoid"`, `"right"` (the published
            sum) or `"left"`.
        site: As for `cdam`, but `"tokens"` by default on all models: a norm does not notice the length of what enters
            it, so a path from zero to the tokens before it has all its change at the very beginning.
    """
    check_count("steps", steps)
    nodes, weights = _quadrature(rule, steps)
    chosen = settle_site(trace, site)
    tokens = fixed(trace.blocks[-1].site(chosen))
    result = path_scores(
        trace, chosen, target, lambda step: nodes[step] * tokens, weights, "integrated CDAM", factor=tokens
    )
    begin = target.scores(trace.replay(**{chosen: torch.zeros_like(trace.blocks[-1].site(chosen))})).detach()
    change = target.scores(trace.outcome).detach() - begin
    gap = result.masked_fill(~trace.real[:, None], 0.0).sum(-1) - change
    trace.cost["tails"] += 1
    trace.diagnostics["completeness_gap"] = gap
    if bool((gap.abs() > _WORTH_TELLING * change.abs().clamp_min(1e-4)).any()):
        warnings.warn(
            "The scores of cdam-integrated do not add up to what the score changes by: for some sample the integral is "
            f"off by more than {_WORTH_TELLING:.0%} of it. Give more steps; see Explanation.diagnostics.",
            MhexWarning,
            stacklevel=2,
        )
    return result


def _quadrature(rule: Rule, steps: int) -> tuple[list[float], list[float]]:
    """Nodes and weights on [0, 1]."""
    if rule == "gauss":
        nodes, weights = np.polynomial.legendre.leggauss(steps)
        return ((nodes + 1) / 2).tolist(), (weights / 2).tolist()
    if rule == "trapezoid":
        shares = [0.5, *[1.0] * (steps - 1), 0.5]
        return [k / steps for k in range(steps + 1)], [share / steps for share in shares]
    shift = {"right": 1.0, "midpoint": 0.5, "left": 0.0}.get(rule)
    if shift is None:
        raise ArgumentError(f"Expected rule 'gauss', 'midpoint', 'trapezoid', 'right' or 'left', but got {rule!r}.")
    return [(k + shift) / steps for k in range(steps)], [1 / steps] * steps
