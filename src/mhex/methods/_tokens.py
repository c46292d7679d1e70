"""Tokens of the last block and their gradients: what the CDAM methods share."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Literal

import torch
from torch import Tensor

from mhex.capture import Trace, full
from mhex.errors import ArgumentError, CaptureError, MhexWarning
from mhex.targets import ResolvedTarget

Site = Literal["auto", "tokens", "block_input"]
MOST = 10**6  # of passes: more of them take days, and memory before the first
_CANCELLED = 1e-3  # sums below this share of what is added up; by chance alone, sums of D terms are about D**-0.5 of it


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


def check_count(name: str, value: object, or_none: bool = False, most: int = MOST) -> None:
    """Refuse a number of passes below 1, or beyond all reason.

    Args:
        name: Of the option.
        value: What the user gave.
        or_none: Whether None will do.
        most: The largest number.
    """
    if value is None and or_none:
        return
    if isinstance(value, bool) or not isinstance(value, Integral) or not 1 <= int(value) <= most:
        raise ArgumentError(f"Expected {name} to be a whole number from 1 to {most}, but got {value!r}.")


def fixed(tensor: Tensor) -> Tensor:
    """Without a graph, in at least float32."""
    return full(tensor.detach())


def tell_cancelled(trace: Trace, what: str, scores: Tensor, sizes: Tensor) -> None:
    """Warn where the terms that make up the scores of a sample cancel, so that next to nothing but rounding is left.

    They do where what is explained enters a layer norm and nothing else: the norm notices neither its mean nor its
    length, so the sum of its gradient is 0, and that of its product with the gradient too.

    Args:
        trace: The observed pass.
        what: Words for the method.
        scores: Sums of terms of all targets, (B, K, N) or (B, K, h, w).
        sizes: Sums of the terms' absolute values, of the same shape.
    """
    rows = zip(scores.unbind(1), sizes.unbind(1), strict=True)
    sums = [(trace.place(row).abs().flatten(1).sum(1), trace.place(size).flatten(1).sum(1)) for row, size in rows]
    if any(bool(((left <= _CANCELLED * added) & (added > 0)).any()) for left, added in sums):
        warnings.warn(
            f"The scores of {what} are next to nothing but rounding: for some sample the terms that each score adds up "
            f"cancel to less than {_CANCELLED:.1%} of their size. So it is where embeddings or tokens enter a layer "
            "norm directly, as in DeBERTa: it notices neither their mean nor their length. Take 'occlusion' or 'shap', "
            "which hide words or patches, or 'conservative-lrp', which takes the scale of a norm as fixed.",
            MhexWarning,
            stacklevel=3,
        )


def path_scores(
    trace: Trace,
    site: str,
    target: ResolvedTarget,
    variant: Callable[[int], Tensor],
    weights: Sequence[float],
    what: str,
    factor: Tensor | None = None,
) -> Tensor:
    """`sum_v w_v sum_j f_ij dy(T_v)/dT_ij` over variants `T_v` of the last block's tokens, (B, K, N).

    Only the last block and the head are run for each variant. Images of known families are run several variants at a
    time: two thirds as many as there are blocks, so that their graphs take no more memory than one backward pass
    through the model. Texts have masks of their own, and unknown heads may answer for the samples of their inputs only.

    Args:
        trace: The observed pass.
        site: Which tokens vary.
        target: What is explained.
        variant: From its number to the tokens `T_v`, (B, N, D).
        weights: `w_v`, as many as there are variants.
        what: Words for the progress bar.
        factor: `f`, (B, N, D); None for the variant itself.
    """
    many = trace.batch.modality == "image" and not trace.batch.kwargs and trace.anatomy.readout != "measured"
    together = max(1, 2 * len(trace.blocks) // 3) if many else 1
    around = trace.blocks[-1].site("block_input").detach()
    size, tokens = around.shape[:2]
    total = fixed(around).new_zeros(size, target.count, tokens)
    sizes = torch.zeros_like(total)
    for start in trace.track(range(0, len(weights), together), what):
        numbers = range(start, min(start + together, len(weights)))
        points = torch.cat([variant(number) for number in numbers]).to(around.dtype).requires_grad_()
        given = {site: points}
        if site != "block_input":
            given["block_input"] = around.repeat(len(numbers), 1, 1)  # the skip connection
        scores = target.scores(trace.replay(**given))
        if not scores.requires_grad:
            raise CaptureError("No gradient reaches the tokens of the last block: the forward pass cuts it.")
        multiplier = fixed(points) if factor is None else factor.repeat(len(numbers), 1, 1)
        share = total.new_tensor([weights[number] for number in numbers])
        for k in range(target.count):
            (gradient,) = torch.autograd.grad(scores[:, k].sum(), points, retain_graph=k < target.count - 1)
            products = (multiplier * fixed(gradient)).reshape(len(numbers), size, tokens, -1)
            total[:, k] += torch.tensordot(share, products.sum(-1), 1)
            sizes[:, k] += torch.tensordot(share, products.abs().sum(-1), 1)
        trace.cost["tails"] = trace.cost.get("tails", 0) + len(numbers)
    tell_cancelled(trace, what, total, sizes)
    return total
