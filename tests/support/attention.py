"""Attention by code of the tests, in the place of torch's fused kernel."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

# From q, k and v, each (B, H, N, .), what is added to the logits, (B, H, N, M), and their scale, to (B, H, N, .).
Steps = Callable[[Tensor, Tensor, Tensor, Tensor, float], Tensor]


@contextlib.contextmanager
def attention_by(steps: Steps) -> Iterator[None]:
    """While open, models that call the fused kernel get what `steps` returns; masks of all kinds are sums to it."""
    original, fast_path = F.scaled_dot_product_attention, torch.backends.mha.get_fastpath_enabled()

    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        assert dropout_p == 0
        if enable_gqa:
            copies = query.shape[1] // key.shape[1]
            key, value = (torch.stack([tensor] * copies, 2).flatten(1, 2) for tensor in (key, value))
        mask = torch.zeros(*query.shape[:-1], key.shape[-2], dtype=query.dtype)
        if is_causal:
            mask = mask.masked_fill(~torch.ones(mask.shape[-2:], dtype=torch.bool).tril(), -math.inf)
        if attn_mask is not None:
            mask = mask.masked_fill(~attn_mask, -math.inf) if attn_mask.dtype == torch.bool else mask + attn_mask
        return steps(query, key, value, mask, query.shape[-1] ** -0.5 if scale is None else scale)

    F.scaled_dot_product_attention = attend
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        F.scaled_dot_product_attention = original
        torch.backends.mha.set_fastpath_enabled(fast_path)


def shares_of(logits: Tensor) -> Tensor:
    """The softmax over the last axis, written out."""
    shares = (logits - logits.amax(-1, keepdim=True)).exp()
    return shares / shares.sum(-1, keepdim=True)
