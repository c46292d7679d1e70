"""Tokens of the last block and their gradients: what the CDAM methods share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import torch
from torch import Tensor

from mhex.capture import Trace
from mhex.errors import ArgumentError, CaptureError
from mhex.targets import ResolvedTarget

Site = Literal["auto", "tokens", "block_input"]


def settle_site(trace: Trace, site: Site) -> str:
    """Which tokens are explained, written into the result.

    Args:
        trace: The observed pass.
        site: As the user chose. `"auto"` is `"tokens"`, and `"block_input"` where the head averages the patches, which
            then reach it by the skip connection too.
    """
    if site not in ("auto", "tokens", "block_input"):
        raise ArgumentError(f"Expected site 'auto', 'tokens' or 'block_input', but got {site!r}.")
    chosen = ("block_input" if trace.anatomy.readout == "mean" else "tokens") if site == "auto" else site
    trace.chosen["site"] = chosen
    return chosen


def check_count(name: str, value: int) -> None:
    """Refuse a number of passes below 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ArgumentError(f"Expected {name} to be a whole number from 1 on, but got {value!r}.")


def full(tensor: Tensor) -> Tensor:
    """Without a graph, in at least float32."""
    return tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32))


def replayed(
    trace: Trace, site: str, target: ResolvedTarget, variants: int, variant: Callable[[int], Tensor], what: str
) -> Iterator[tuple[int, Tensor, Tensor, list[Tensor]]]:
    """Run the last block and the head on variants of the last block's tokens.

    Images are run several variants at a time: two thirds as many as there are blocks, so that their graphs take no more
    memory than one backward pass through the model.

    Args:
        trace: The observed pass.
        site: Which tokens vary.
        target: What is explained.
        variants: How many.
        variant: From its number to the tokens, (B, N, D).
        what: Words for the progress bar.

    Yields:
        The number of each variant, its tokens (B, N, D), its scores (B, K), and for each target the gradient (B, N, D).
    """
    size = trace.batch.size
    single = trace.batch.modality == "text" and size > 1  # every text has its own mask
    together = 1 if single else max(1, 2 * len(trace.blocks) // 3)
    around = trace.blocks[-1].site("block_input").detach()
    for start in trace.track(range(0, variants, together), what):
        numbers = range(start, min(start + together, variants))
        points = torch.cat([variant(number) for number in numbers]).to(around.dtype).requires_grad_()
        given = {site: points}
        if site != "block_input":
            given["block_input"] = around.repeat(len(numbers), 1, 1)  # the skip connection
        scores = target.scores(trace.replay(**given))
        if not scores.requires_grad:
            raise CaptureError("No gradient reaches the tokens of the last block: the forward pass cuts it.")
        gradients = []
        for k in range(target.count):
            (gradient,) = torch.autograd.grad(scores[:, k].sum(), points, retain_graph=k < target.count - 1)
            gradients.append(full(gradient).reshape(len(numbers), *around.shape))
        trace.cost["tails"] = trace.cost.get("tails", 0) + len(numbers)
        observed = full(points).reshape(len(numbers), *around.shape)
        shown = scores.detach().reshape(len(numbers), size, -1)
        for place, number in enumerate(numbers):
            yield number, observed[place], shown[place], [gradient[place] for gradient in gradients]
