"""Relevance of kept tensors: from a score, through the rules of a pass, with its books."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mhex.capture.batch import full
from mhex.errors import CaptureError

if TYPE_CHECKING:
    from mhex.capture.trace import Trace
    from mhex.relevance import Flow


def relevance_of(trace: Trace, flow: Flow, y: Tensor, tensors: tuple[Tensor, ...], signed: bool) -> list[Tensor]:
    """Relevance of each tensor; the books of the first are left in `trace.diagnostics`.

    In the gradient flow the score itself is handed down. In the relevance flow each logit starts with its share in the
    score, `o dy/do`, scaled to mass 1: a class with 1, or -1 if its logit is negative, so that scores above 0 speak for
    the class. Shares of both signs are handed down one after the other, because sums are renormalised.

    Args:
        trace: The pass.
        flow: Its rules.
        y: One score per sample, (B,).
        tensors: Kept ones.
        signed: False to start with absolute shares.
    """
    source, start = _start(trace, y)
    if not flow.relevance:
        flow.settle()
        gradients = trace.gradient(y, *tensors)
        found = [full(tensor.detach()) * full(one) for tensor, one in zip(tensors, gradients, strict=True)]
        lost = flow.settle()
    else:
        mass = _each(start.abs().flatten(1).sum(1), start)
        start = start / mass.where(mass > 0, 1.0)
        start = start if signed else start.abs()
        found, lost = _both_signs(trace, flow, source, start, tensors)
    trace.diagnostics |= _books(start, found[0], lost)
    return found


def _start(trace: Trace, y: Tensor) -> tuple[Tensor, Tensor]:
    """Where relevance starts (the outputs, or for concepts the latent vector), and shares of it in the score."""
    for source in (trace.returned, trace.outer.get("latent")):
        if source is not None and source.requires_grad and y.requires_grad:
            (slope,) = torch.autograd.grad(y.sum(), source, retain_graph=True, allow_unused=True)
            if slope is not None:
                return source, full(source.detach()) * full(slope)
    raise CaptureError(
        "No relevance reaches what the method reads: the pass cuts it (no_grad, quantised layers), or the rules hold "
        "constant what it goes through (sigmoid, or softmax as the output)."
    )


def _both_signs(
    trace: Trace, flow: Flow, source: Tensor, start: Tensor, tensors: tuple[Tensor, ...]
) -> tuple[list[Tensor], Tensor | None]:
    """One pass for samples whose shares have one sign, whichever it is; those with both take part in a second."""
    ends = [full(tensor.detach()) for tensor in tensors]
    total, lost = [torch.zeros_like(end) for end in ends], None
    above, below = start.clamp_min(0), -start.clamp_max(0)
    first = _each(above.flatten(1).any(1), start)
    for part, sign in ((torch.where(first, above, below), torch.where(first, 1, -1)), (below * first, -first.int())):
        if not bool(part.any()):
            continue
        flow.settle()
        carried = trace.carried(source, part.to(source.dtype), tensors)
        total = [one.add_(full(more) * _each(sign, more)) for one, more in zip(total, carried, strict=True)]
        if (share := flow.settle()) is not None:
            share = share * sign.flatten()
            lost = share if lost is None else lost + share
    return total, lost


def _each(samples: Tensor, like: Tensor) -> Tensor:
    """One value per sample, laid out so that it multiplies a tensor (B, ...)."""
    return samples.reshape(-1, *[1] * (like.dim() - 1))


def _books(start: Tensor, arrived: Tensor, lost: Tensor | None) -> dict[str, Tensor]:
    """Relevance at the score and where it arrived, and what is missing, each (B,).

    `relevance_in` is what was started with: the score, or 1 of a class in the relevance flow. `relevance_out` is what
    arrived. `lost_to_biases` is what constants of the model took: biases, position embeddings, class tokens and, where
    the graph starts inside a block, what passes it by. `conservation_gap` is the rest, as a share of what was started.
    """
    given, size = start.flatten(1).sum(1), start.abs().flatten(1).sum(1)
    left = full(arrived).flatten(1).sum(1)
    taken = torch.zeros_like(given) if lost is None else full(lost)
    gap = (given - left - taken).abs() / size.clamp_min(torch.finfo(size.dtype).tiny)
    return {"relevance_in": given, "relevance_out": left, "lost_to_biases": taken, "conservation_gap": gap}
