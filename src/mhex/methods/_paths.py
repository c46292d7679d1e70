"""Gradients summed over changed inputs or tokens, quadrature, and whether scores add up: what path methods share."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mhex._settings import check_that
from mhex.capture import Needs, Trace
from mhex.errors import CaptureError, warn
from mhex.methods._shared import at_block, detach_float32, tell_cancelled
from mhex.targets import ResolvedTarget

Site = Literal["auto", "tokens", "block_input"]
Rule = Literal["gauss", "midpoint", "trapezoid", "right", "left"]
_TOKENS = Needs(keep={"block_input": "last", "tokens": "last"})
# What CDAM along a path of tokens registers with.
CDAM_PATH: dict[str, Any] = {
    "paper": "Brocki, Binda & Chung, Class-Discriminative Attention Maps for Vision Transformers, 2023, "
    "arXiv:2312.02364",
    "needs": _TOKENS,
    "adapt": at_block(_TOKENS),
    "signed": True,
    "passes": "F + n t",
    "budget": (14.0, "F"),
    "target": "scores",
}
# What gradients along a path of inputs register with.
INPUT_PATH: dict[str, Any] = {
    "needs": Needs(keep={"input": "last"}),
    "signed": True,
    "passes": "F + n (F + B)",
    "target": "scores",
}
_WORTH_TELLING = 0.2  # gap beside the change of the score
_MOST_NODES = 1000
_GRAPH = 4  # how much more memory a sample takes with a graph


def settle_site(trace: Trace, site: Site) -> str:
    """Which tokens are explained, written into the result; `"auto"` is as `cdam` says."""
    choice = ("block_input" if trace.anatomy.readout == "mean" else "tokens") if site == "auto" else site
    trace.chosen["site"] = choice
    return choice


def path_scores(
    trace: Trace,
    site: str,
    target: ResolvedTarget,
    variant: Callable[[int], Tensor],
    weights: Sequence[float],
    words: str,
    factor: Tensor | None = None,
) -> Tensor:
    """`sum_v w_v sum_j f_ij dy(T_v)/dT_ij` over variants `T_v` (B, N, D) of the last block's tokens, (B, K, N).

    `variant` makes them by their number, and the factor `f` is the variant itself if None. Only the last block and the
    head are run for each variant. Images of known families are run several variants at a time: two thirds as many as
    there are blocks, so that their graphs take no more memory than one backward pass through the model. Texts have
    masks of their own, and unknown heads may answer for the samples of their inputs only.
    """
    many = trace.batch.modality == "image" and not trace.batch.kwargs and trace.anatomy.readout != "measured"
    tail = len(trace.blocks) - trace.block_index  # blocks that are run for each variant
    together = max(1, 2 * len(trace.blocks) // (3 * tail)) if many else 1
    around = trace.block.site("block_input").detach()
    size, tokens = around.shape[:2]
    total = detach_float32(around).new_zeros(size, target.count, tokens)
    sizes = torch.zeros_like(total)
    for start in trace.track(range(0, len(weights), together), words):
        numbers = range(start, min(start + together, len(weights)))
        points = torch.cat([variant(number) for number in numbers]).to(around.dtype).requires_grad_()
        inputs = {site: points}
        if site != "block_input":
            inputs["block_input"] = around.repeat(len(numbers), 1, 1)  # the skip connection
        scores = target.scores(trace.replay(**inputs))
        if not scores.requires_grad:
            raise CaptureError("No gradient reaches the tokens of the last block: the forward pass cuts it.")
        multiplier = detach_float32(points) if factor is None else factor.repeat(len(numbers), 1, 1)
        share = total.new_tensor([weights[number] for number in numbers])
        for k in range(target.count):
            (gradient,) = torch.autograd.grad(scores[:, k].sum(), points, retain_graph=k < target.count - 1)
            products = (multiplier * detach_float32(gradient)).reshape(len(numbers), size, tokens, -1)
            total[:, k] += torch.tensordot(share, products.sum(-1), 1)
            sizes[:, k] += torch.tensordot(share, products.abs().sum(-1), 1)
        trace.cost["tails"] = trace.cost.get("tails", 0) + len(numbers)
    tell_cancelled(trace, words, total, sizes)
    return total


def input_gradients(
    trace: Trace,
    target: ResolvedTarget,
    point: Callable[[int, Tensor], Tensor],
    weights: Sequence[float],
    factor: Tensor | None,
    words: str,
    batch_size: int | None,
) -> Tensor:
    """`sum_v w_v sum_c f_c dy(x_v)/dx_c` over variants `x_v` of the input, (B, K, H, W) or (B, K, T).

    `point` goes from the number of a variant and those of some samples (M,) to their variants, (M, ...); the factor `f`
    has the shape of the input, and is 1 if None.
    """
    x = detach_float32(trace.input)
    size, channels = len(x), 1 if trace.batch.modality == "image" else -1
    places = x.sum(channels).shape[1:]
    backwards = trace.cost["backwards"]

    def run(start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Sums over a part of the variants of all samples, one variant after the other, and how much is added up."""
        jobs = torch.arange(start, stop, device=x.device)
        samples = jobs % size
        cuts = [start, *range((start // size + 1) * size, stop, size), stop]
        points = torch.cat([point(a // size, samples[a - start : b - start]) for a, b in pairwise(cuts)])
        points = points.to(trace.input.dtype).requires_grad_()
        scores = target.scores(trace.rerun(points, samples, graph=True, once=target.count == 1), samples)
        # As a matrix product, because adding by index is not repeatable on a GPU.
        share = F.one_hot(samples, size).to(x) * x.new_tensor(weights)[jobs // size, None]
        sums, absolute = [], []
        for k in range(target.count):
            (gradient,) = trace.gradient(scores[:, k], points, last=k == target.count - 1)
            product = detach_float32(gradient) if factor is None else factor[samples] * detach_float32(gradient)
            sums.append(share.mT @ product.sum(channels).flatten(1))
            absolute.append(share.mT @ product.abs().sum(channels).flatten(1))
        return torch.stack(sums, 1), torch.stack(absolute, 1)

    total = x.new_zeros(size, target.count, places.numel())
    added = torch.zeros_like(total)
    for _, _, (part, size_of_part) in trace.chunks(len(weights) * size, run, words, batch_size, weight=_GRAPH):
        total += part
        added += size_of_part
    trace.cost["forwards"] += len(weights)
    trace.cost["backwards"] = backwards + target.count * len(weights)
    total, added = (sums.reshape(size, target.count, *places) for sums in (total, added))
    tell_cancelled(trace, words, total, added)
    return total


def tell_gap(trace: Trace, method: str, gap: Tensor, change: Tensor) -> None:
    """Write how far scores are from adding up, (B, K), into the result, and warn where it is much beside the change."""
    trace.diagnostics["completeness_gap"] = gap
    words = (
        f"The scores of {method} do not add up to what the score changes by: for some sample the integral is off by "
        f"more than {_WORTH_TELLING:.0%} of it. Give more steps or, where these do not help, another baseline; see "
        "Explanation.diagnostics."
    )
    trace.check_later((gap.abs() > _WORTH_TELLING * change.abs().clamp_min(1e-4)).any(), lambda: warn(words))


def quadrature(rule: Rule, steps: int) -> tuple[list[float], list[float]]:
    """Nodes and weights on [0, 1]."""
    if rule == "gauss":
        right = f"at most {_MOST_NODES} steps for rule 'gauss', which takes a table of steps x steps"
        check_that(steps <= _MOST_NODES, right, steps, "; choose rule='midpoint'")
        nodes, weights = np.polynomial.legendre.leggauss(steps)
        return ((nodes + 1) / 2).tolist(), (weights / 2).tolist()
    if rule == "trapezoid":
        shares = [0.5, *[1.0] * (steps - 1), 0.5]
        return [k / steps for k in range(steps + 1)], [share / steps for share in shares]
    shift = {"right": 1.0, "midpoint": 0.5, "left": 0.0}[rule]
    return [(k + shift) / steps for k in range(steps)], [1 / steps] * steps
