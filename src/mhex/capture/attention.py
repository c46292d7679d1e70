"""A record of one attention, and multi-head attention written in functions that the tap can see."""

from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from subprocess import SubprocessError
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from mhex.capture.precision import HALF, wide_matmul
from mhex.errors import CaptureError

if TYPE_CHECKING:
    from mhex.capture.attention_kernels import FusedAttention

EVERY = slice(None)
_WIDEST = 256  # head that kernels hold


@cache
def has_kernels() -> bool:
    """Whether there is Triton, which comes with torch for GPUs on Linux, and what it builds kernels with."""
    if find_spec("triton") is None:
        return False
    from triton.runtime import driver

    try:  # without a C compiler, or the headers of Python, there is no driver
        return bool(driver.active.get_current_target().arch)
    except (RuntimeError, OSError, SubprocessError):
        return False


@dataclass(frozen=True)
class AttentionRecord:
    """One call of scaled-dot-product attention."""

    query: Tensor  # (B, H, N, d), as given to the kernel
    key: Tensor
    value: Tensor
    mask: Tensor | None  # bool (True = attend) or additive float, broadcastable to (B, H, N, N); None without one
    scale: float  # the factor on the dot products
    causal: bool  # True if the upper triangle is masked
    z: Tensor | None  # (B, H, N, d), what the kernel returned, in the autograd graph; None if no graph was asked for

    def logits(self, rows: slice = EVERY, masked: bool = True) -> Tensor:
        """Attention logits of all queries or some rows, (B, H, N, N), at least float32; or the bare scaled products."""
        dtype = torch.promote_types(self.query.dtype, torch.float32)
        logits = wide_matmul(self.query[:, :, rows], self.keys(), self.scale)
        if not masked:
            return logits
        if self.causal:
            future = torch.ones(self.query.shape[2], logits.shape[-1], dtype=torch.bool, device=logits.device).triu(1)
            logits = logits.masked_fill(future[rows], -torch.inf)
        mask = self._mask(rows)
        if mask is None:
            return logits
        if mask.dtype == torch.bool:
            return logits.masked_fill(~mask, -torch.inf)
        return logits + mask.detach().to(dtype)

    def probabilities(self, rows: slice = EVERY) -> Tensor:
        """`A = softmax(logits)`, (B, H, N, N): rows are queries and sum to 1; rows that may attend to nothing are 0."""
        logits = self.logits(rows)
        probabilities = logits.softmax(-1)
        if self.mask is None and not self.causal:
            return probabilities
        return probabilities.masked_fill(logits.isneginf().all(-1, keepdim=True), 0.0)

    def gradient(self, z_gradient: Tensor) -> Tensor:
        """`dy/dA = (dy/dz) v^T`, (B, H, N, N), from dy/dz, (B, H, N, d), or some rows of both."""
        return wide_matmul(z_gradient, self.values())

    def fused(self, rows: slice = EVERY) -> "FusedAttention | None":
        """The same, or some rows, for kernels that never write `A`; None but for half precision on a GPU."""
        half = self.query.dtype in HALF and self.key.dtype == self.value.dtype == self.query.dtype
        widest = max(self.query.shape[-1], self.value.shape[-1])
        if not half or not self.query.is_cuda or widest > _WIDEST or not has_kernels():
            return None
        from mhex.capture.attention_kernels import FusedAttention

        query = self.query[:, :, rows].detach()
        return FusedAttention(query, self.key.detach(), self._mask(rows), self.scale, self.causal)

    def _mask(self, rows: slice) -> Tensor | None:
        """The mask of some rows of queries."""
        shared = self.mask is None or self.mask.dim() < 2 or self.mask.shape[-2] == 1  # by all queries
        return self.mask if shared or self.mask is None else self.mask[..., rows, :]

    def keys(self) -> Tensor:
        """`k` of every query head, (B, H, N, d), without a graph."""
        return _per_head(self.key, self.query.shape[1]).detach()

    def values(self) -> Tensor:
        """`v` of every query head, (B, H, N, d), without a graph."""
        return _per_head(self.value, self.query.shape[1]).detach()


def _per_head(tensor: Tensor, heads: int) -> Tensor:
    """Repeat grouped keys or values so that every query head has its own."""
    return tensor if tensor.shape[1] == heads else tensor.repeat_interleave(heads // tensor.shape[1], dim=1)


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
    # `torch.nn.functional.multi_head_attention_forward` hides its inner calls from a function mode. While a model is
    # observed, this function stands in for it.
    if bias_k is not None or bias_v is not None or add_zero_attn or static_k is not None or static_v is not None:
        raise CaptureError("nn.MultiheadAttention with bias_k, bias_v or add_zero_attn cannot be explained yet.")
    if query.dim() != 3:
        raise CaptureError(f"Expected batched attention inputs of 3 axes, but got {query.dim()}; add a batch axis.")
    # With samples first, so that rules see one layout everywhere.
    if in_proj_weight is not None and query is key and key is value:
        projected = list(F.linear(query.transpose(0, 1), in_proj_weight, in_proj_bias).chunk(3, dim=-1))
    else:
        separate = (q_proj_weight, k_proj_weight, v_proj_weight)
        weights = separate if in_proj_weight is None else in_proj_weight.chunk(3)
        biases = (None, None, None) if in_proj_bias is None else in_proj_bias.chunk(3)
        triples = zip((query, key, value), weights, biases, strict=True)
        projected = [F.linear(x.transpose(0, 1), w, b) for x, w, b in triples if w is not None]

    length, batch, _ = query.shape
    q, k, v = (x.reshape(batch, x.shape[1], num_heads, -1).transpose(1, 2) for x in projected)
    mask = None if attn_mask is None else _as_float(attn_mask, q.dtype)
    if mask is not None and mask.dim() == 3:
        mask = mask.reshape(batch, num_heads, *mask.shape[-2:])
    if key_padding_mask is not None:
        keys = _as_float(key_padding_mask, q.dtype)[:, None, None, :]
        mask = keys if mask is None else mask + keys
    causal = is_causal and mask is None
    z = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
    output = F.linear(z.transpose(1, 2).reshape(batch, length, -1), out_proj_weight, out_proj_bias).transpose(0, 1)
    if not need_weights:
        return output, None
    attention = AttentionRecord(q, k, v, mask, q.shape[-1] ** -0.5, causal, None).probabilities().to(q.dtype)
    return output, attention.mean(1) if average_attn_weights else attention


def _as_float(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask that is added to logits, from one that is True at what is ignored."""
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(mask, -torch.inf)
