"""What stands in an observed pass where the model attends."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor

from mhex.capture.attention import AttentionRecord
from mhex.capture.rules.origin import mark, origin_of
from mhex.errors import CaptureError

if TYPE_CHECKING:
    from mhex.capture.watch import Watch


def attend(
    watch: Watch,
    kernel: Callable[..., Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Stands where the model calls scaled-dot-product attention, and keeps a record of it if it is wanted."""
    if dropout_p > 0:
        raise CaptureError("The model drops attention at random even in evaluation mode, so it cannot be explained.")
    wanted = watch.replaying is None and watch.wanted("attention")
    if wanted and query.dim() != 4:
        raise CaptureError(f"Expected attention over (B, H, N, d), but it is given {tuple(query.shape)}.")
    starts = wanted and watch.graph_starts("attention")
    if starts and watch.needs.graph == "query":
        query = query.detach().requires_grad_()
    options = {"enable_gqa": True} if enable_gqa else {}
    z = kernel(query, key, value, attn_mask=attn_mask, is_causal=is_causal, scale=scale, **options)
    if starts and watch.needs.graph == "attention":
        z = z.detach().requires_grad_()
    pooling = watch.current is None and watch.anatomy.readout == "pool" and watch.replaying is None
    if not wanted and not pooling:
        return z
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    record = AttentionRecord(query, key, value, attn_mask, factor, is_causal, z if watch.needs.graph else None)
    if pooling:
        watch.pool = record
    elif watch.blocks[watch.running()].record is not None:
        raise CaptureError("A block attends twice; only blocks with one self-attention can be explained.")
    else:
        watch.blocks[watch.running()].record = record
    if not watch.needs.graph:
        return z
    copy = z.clone()  # the model may write into it
    mark(copy, origin_of(z))
    return copy
