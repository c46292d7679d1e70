"""Triton kernels for what methods read of an attention, without writing its matrices (B, H, N, M) to memory.

Queries, keys and gradients are multiplied on tensor cores in the precision that they come in; softmax and sums are in
float32. The module is imported only on a GPU where there is Triton, which comes with torch.
"""

# mypy: disable-error-code="no-untyped-call, no-untyped-def, untyped-decorator"
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_TILE = 64  # queries or keys that are held at a time
_LEAST = 16  # numbers of a head that tensor cores multiply at least


@triton.jit
def _rows(tensor, strides, b, h, places, count, dim, width: tl.constexpr):
    """Rows (tile, d) of a tensor (B, H, N, d), 0 beyond its end."""
    d = tl.arange(0, width)
    start = tensor + b.to(tl.int64) * strides[0] + h * strides[1]
    inside = (places[:, None] < count) & (d[None, :] < dim)
    return tl.load(start + places[:, None] * strides[2] + d[None, :] * strides[3], mask=inside, other=0.0)


@triton.jit
def _logits(query, key, n, m, b, h, sizes, scale, mask, strides, kind: tl.constexpr, causal: tl.constexpr):
    """Logits of queries `n` and keys `m`, minus infinity where one may not attend, or where there is none."""
    logits = tl.dot(query, tl.trans(key)) * scale
    inside = (n[:, None] < sizes[0]) & (m[None, :] < sizes[1])
    if kind != "none":
        start = mask + b.to(tl.int64) * strides[0] + h * strides[1]
        places = n[:, None].to(tl.int64) * strides[2] + m[None, :] * strides[3]
        values = tl.load(start + places, mask=inside, other=0)
        if kind == "bool":
            inside = inside & (values != 0)
        else:
            logits += values.to(tl.float32)
    if causal:
        inside = inside & (m[None, :] <= n[:, None])
    return tl.where(inside, logits, -float("inf"))


@triton.jit
def _norms_kernel(
    out, q, k, mask, q_strides, k_strides, mask_strides, sizes, heads, group, dim, scale,
    kind: tl.constexpr, causal: tl.constexpr, width: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """`log sum_m exp(logit_nm)`, (B, H, N); plus infinity for a query that may attend to nothing."""
    b, h = tl.program_id(0) // heads, tl.program_id(0) % heads
    n = tl.program_id(1) * tile + tl.arange(0, tile)
    query = _rows(q, q_strides, b, h, n, sizes[0], dim, width)
    top = tl.full([tile], -float("inf"), tl.float32)
    total = tl.zeros([tile], tl.float32)
    for start in range(0, sizes[1], tile):
        m = start + tl.arange(0, tile)
        key = _rows(k, k_strides, b, h // group, m, sizes[1], dim, width)
        logits = _logits(query, key, n, m, b, h, sizes, scale, mask, mask_strides, kind, causal)
        above = tl.maximum(top, tl.max(logits, 1))
        shift = tl.where(above == -float("inf"), 0.0, above)
        total = total * tl.exp(top - shift) + tl.sum(tl.exp(logits - shift[:, None]), 1)
        top = above
    norm = tl.where(total > 0, tl.log(total) + top, float("inf"))
    tl.store(out + tl.program_id(0).to(tl.int64) * sizes[0] + n, norm, mask=n < sizes[0])


@triton.jit
def _through_kernel(
    out, row, norms, q, k, g, v, mask, q_strides, k_strides, g_strides, v_strides, mask_strides, row_stride,
    sizes, heads, group, dim, value_dim, scale,
    with_gradient: tl.constexpr, kind: tl.constexpr, causal: tl.constexpr,
    width: tl.constexpr, value_width: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """`sum_n r_n A_nm`, or `sum_n r_n A_nm (g_n v_m)^+`, (B, H, M)."""
    b, h = tl.program_id(0) // heads, tl.program_id(0) % heads
    m = tl.program_id(1) * tile + tl.arange(0, tile)
    key = _rows(k, k_strides, b, h // group, m, sizes[1], dim, width)
    if with_gradient:
        value = _rows(v, v_strides, b, h // group, m, sizes[1], value_dim, value_width)
    total = tl.zeros([tile], tl.float32)
    for start in range(0, sizes[0], tile):
        n = start + tl.arange(0, tile)
        query = _rows(q, q_strides, b, h, n, sizes[0], dim, width)
        logits = _logits(query, key, n, m, b, h, sizes, scale, mask, mask_strides, kind, causal)
        norm = tl.load(norms + tl.program_id(0).to(tl.int64) * sizes[0] + n, mask=n < sizes[0], other=float("inf"))
        weights = tl.exp(logits - norm[:, None])
        if with_gradient:
            gradient = _rows(g, g_strides, b, h, n, sizes[0], value_dim, value_width)
            weights *= tl.maximum(tl.dot(gradient, tl.trans(value)), 0.0)
        r = tl.load(row + b.to(tl.int64) * row_stride + n, mask=n < sizes[0], other=0.0)
        total += tl.sum(weights * r[:, None], 0)
    tl.store(out + tl.program_id(0).to(tl.int64) * sizes[1] + m, total, mask=m < sizes[1])


@triton.jit
def _mean_kernel(
    out, norms, q, k, mask, q_strides, k_strides, mask_strides, sizes, heads, group, dim, scale,
    kind: tl.constexpr, causal: tl.constexpr, width: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """`1/H sum_h A_hnm`, (B, N, M)."""
    b = tl.program_id(0)
    n = tl.program_id(1) * tile + tl.arange(0, tile)
    m = tl.program_id(2) * tile + tl.arange(0, tile)
    total = tl.zeros([tile, tile], tl.float32)
    for h in range(0, heads):
        query = _rows(q, q_strides, b, h, n, sizes[0], dim, width)
        key = _rows(k, k_strides, b, h // group, m, sizes[1], dim, width)
        logits = _logits(query, key, n, m, b, h, sizes, scale, mask, mask_strides, kind, causal)
        norm = tl.load(norms + (b.to(tl.int64) * heads + h) * sizes[0] + n, mask=n < sizes[0], other=float("inf"))
        total += tl.exp(logits - norm[:, None])
    places = (b.to(tl.int64) * sizes[0] + n[:, None]) * sizes[1] + m[None, :]
    tl.store(out + places, total / heads, mask=(n[:, None] < sizes[0]) & (m[None, :] < sizes[1]))


class FusedAttention:
    """An attention of half precision on a GPU, read tile by tile.

    Args:
        query: (B, H, N, d).
        key: (B, G, M, d), where H is a multiple of G.
        mask: Bool (True = attend) or additive, broadcastable to (B, H, N, M); None without one.
        scale: The factor on the dot products.
        causal: Whether queries attend only to keys at or before their own place.
    """

    def __init__(self, query: Tensor, key: Tensor, mask: Tensor | None, scale: float, causal: bool) -> None:
        batch, self.heads, rows, dim = query.shape
        self.batch, self.sizes = batch, (rows, key.shape[2])
        self.shape = {"heads": self.heads, "group": self.heads // key.shape[1], "dim": dim, "scale": scale}
        kind = "none" if mask is None else "bool" if mask.dtype == torch.bool else "added"
        mask = query if mask is None else mask.detach().expand(batch, self.heads, *self.sizes)
        bits = mask.view(torch.uint8) if kind == "bool" else mask
        self.tensors: dict[str, Any] = {"q": query, "k": key, "mask": bits}
        self.tensors["q_strides"], self.tensors["k_strides"] = query.stride(), key.stride()
        self.tensors |= {"mask_strides": mask.stride(), "sizes": self.sizes}
        width = max(_LEAST, triton.next_power_of_2(dim))
        self.choices = {"kind": kind, "causal": causal, "width": width, "tile": _TILE}
        self.norms = query.new_empty(batch, self.heads, rows, dtype=torch.float32)
        grid = (batch * self.heads, triton.cdiv(rows, _TILE))
        with torch.cuda.device_of(query):  # Triton takes the current device, which may be another
            _norms_kernel[grid](self.norms, **self.tensors, **self.shape, **self.choices)

    def through(self, row: Tensor, gradient: Tensor | None = None, value: Tensor | None = None) -> Tensor:
        """`r A`, (B, H, M), of a row (B, N) in float32; or `r (A * (g v^T)^+)`, of `dy/dz` and values (B, H, N, d)."""
        out = row.new_empty(self.batch, self.heads, self.sizes[1], dtype=torch.float32)
        g, v = (gradient, value) if gradient is not None and value is not None else (out[..., None], out[..., None])
        operands: dict[str, Any] = {"g": g, "v": v, "g_strides": g.stride(), "v_strides": v.stride()}
        grid = (self.batch * self.heads, triton.cdiv(self.sizes[1], _TILE))
        with torch.cuda.device_of(out):
            _through_kernel[grid](
                out, row.contiguous(), self.norms, **self.tensors, **operands, **self.shape, **self.choices,
                row_stride=self.sizes[0], value_dim=v.shape[-1], with_gradient=g is gradient,
                value_width=max(_LEAST, triton.next_power_of_2(v.shape[-1])),
            )  # fmt: skip
        return out

    def mean(self) -> Tensor:
        """The mean of all heads, (B, N, M), float32."""
        out = self.norms.new_empty(self.batch, *self.sizes)
        grid = (self.batch, triton.cdiv(self.sizes[0], _TILE), triton.cdiv(self.sizes[1], _TILE))
        with torch.cuda.device_of(out):
            _mean_kernel[grid](out, self.norms, **self.tensors, **self.shape, **self.choices)
        return out
