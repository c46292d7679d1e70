"""Multi-head attention written in functions that the tap can see.

`torch.nn.functional.multi_head_attention_forward` hides its inner calls from a function mode. While a model is
observed, this function of the same meaning stands in for it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from mhex.capture.attention import AttentionRecord
from mhex.errors import CaptureError


def multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Same arguments and result as torch's function, in evaluation mode; tensors are (N, B, D)."""
    if bias_k is not None or bias_v is not None or add_zero_attn or static_k is not None or static_v is not None:
        raise CaptureError("nn.MultiheadAttention with bias_k, bias_v or add_zero_attn cannot be explained yet.")
    if query.dim() != 3:
        raise CaptureError(f"Expected batched attention inputs of 3 axes, but got {query.dim()}; add a batch axis.")
    # With samples first, so that rules see one layout everywhere.
    if in_proj_weight is not None and query is key and key is value:
        projected = list(F.linear(query.transpose(0, 1), in_proj_weight, in_proj_bias).chunk(3, dim=-1))
    else:
        packed = (
            in_proj_weight.chunk(3) if in_proj_weight is not None else (q_proj_weight, k_proj_weight, v_proj_weight)
        )
        biases = in_proj_bias.chunk(3) if in_proj_bias is not None else (None, None, None)
        projected = [
            F.linear(x.transpose(0, 1), w, b)
            for x, w, b in zip((query, key, value), packed, biases, strict=True)
            if w is not None
        ]

    length, batch, _ = query.shape
    q, k, v = (x.reshape(batch, x.shape[1], num_heads, -1).transpose(1, 2) for x in projected)
    mask = _additive_mask(attn_mask, key_padding_mask, batch, num_heads, q.dtype)
    causal = is_causal and mask is None
    z = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
    output = F.linear(z.transpose(1, 2).reshape(batch, length, -1), out_proj_weight, out_proj_bias).transpose(0, 1)
    if not need_weights:
        return output, None
    weights = AttentionRecord(q, k, v, mask, q.shape[-1] ** -0.5, causal, None).probabilities().to(q.dtype)
    return output, weights.mean(1) if average_attn_weights else weights


def _additive_mask(
    attention: Tensor | None, padding: Tensor | None, batch: int, heads: int, dtype: torch.dtype
) -> Tensor | None:
    """Join both masks of `nn.MultiheadAttention` (True = ignore) into one additive mask."""
    total: Tensor | None = None
    if attention is not None:
        total = _as_float(attention, dtype)
        if total.dim() == 3:
            total = total.reshape(batch, heads, *total.shape[-2:])
    if padding is not None:
        keys = _as_float(padding, dtype)[:, None, None, :]
        total = keys if total is None else total + keys
    return total


def _as_float(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(mask, -torch.inf)
