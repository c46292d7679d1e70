"""Small parts that many methods share: tensors without a graph, sums that cancel, and shares of skip connections."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from mhex.capture import Anatomy, Needs, Trace, full
from mhex.errors import warn

_CANCELLED = 1e-3  # sums below this share of what is added up; by chance alone, sums of D terms are about D**-0.5 of it


def at_block(needs: Needs) -> Callable[[Mapping[str, Any], Anatomy], Needs]:
    """What a method with the option `block` reads: needs of the last block, or of the one that the option names."""
    return lambda options, anatomy: needs.at_block(options["block"], len(anatomy.blocks))


def detach_float32(tensor: Tensor) -> Tensor:
    """The tensor without a graph, in at least float32."""
    return full(tensor.detach())


def tell_cancelled(trace: Trace, method: str, scores: Tensor, sizes: Tensor) -> None:
    """Warn where terms, whose sums are scores (B, K, N) or (B, K, h, w) and sizes without signs, cancel to rounding."""
    # They do where what is explained enters a layer norm and nothing else: the norm notices neither its mean nor its
    # length, so the sum of its gradient is 0, and that of its product with the gradient too.
    rows = zip(scores.unbind(1), sizes.unbind(1), strict=True)
    sums = [(trace.place(row).abs().flatten(1).sum(1), trace.place(size).flatten(1).sum(1)) for row, size in rows]
    cancelled = torch.stack([((total <= _CANCELLED * size) & (size > 0)).any() for total, size in sums]).any()
    words = (
        f"The scores of {method} are next to nothing but rounding: for some sample the terms that each score adds "
        f"up cancel to less than {_CANCELLED:.1%} of their size. So it is where embeddings or tokens enter a layer "
        "norm directly, as in DeBERTa: it notices neither their mean nor their length. Take 'occlusion' or 'shap', "
        "which hide words or patches, or 'conservative-lrp', which takes the scale of a norm as fixed."
    )
    trace.check_later(cancelled, lambda: warn(words))


def beyond_skips(trace: Trace, row: Tensor, share: Tensor) -> Tensor:
    """The row (B, N) less the share (B, N) that a word which the head reads alone keeps by skip connections."""
    # A decoder reads its last word, and the identity of all blocks would give it most of the map whatever it says.
    # Where the head reads several tokens, or a class token, which is in no map, nothing is different.
    return row - share.where((trace.readout == 1) & trace.spatial, 0.0)
