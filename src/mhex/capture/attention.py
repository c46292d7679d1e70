"""Attention probabilities and their gradient, rebuilt from what the fused kernel was given and what it returned."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

EVERY = slice(None)


@dataclass(frozen=True)
class AttentionRecord:
    """One call of scaled-dot-product attention.

    Attributes:
        query, key, value: (B, H, N, d), as given to the kernel.
        mask: Bool (True = attend) or additive float, broadcastable to (B, H, N, N); None without one.
        scale: The factor on the dot products.
        causal: True if the upper triangle is masked.
        z: (B, H, N, d), what the kernel returned, in the autograd graph; None if no graph was asked for.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    scale: float
    causal: bool
    z: Tensor | None

    def logits(self, rows: slice = EVERY, masked: bool = True) -> Tensor:
        """Attention logits, (B, H, N, N), at least float32.

        Args:
            rows: Only these queries.
            masked: False for the scaled dot products alone.
        """
        dtype = torch.promote_types(self.query.dtype, torch.float32)
        logits = (self.query[:, :, rows].detach().to(dtype) * self.scale) @ self.keys().to(dtype).mT
        if not masked:
            return logits
        if self.causal:
            future = torch.ones(self.query.shape[2], logits.shape[-1], dtype=torch.bool, device=logits.device).triu(1)
            logits = logits.masked_fill(future[rows], -torch.inf)
        if self.mask is None:
            return logits
        mask = self.mask if self.mask.dim() < 2 or self.mask.shape[-2] == 1 else self.mask[..., rows, :]
        if mask.dtype == torch.bool:
            return logits.masked_fill(~mask, -torch.inf)
        return logits + mask.detach().to(dtype)

    def probabilities(self, rows: slice = EVERY) -> Tensor:
        """`A = softmax(logits)`, (B, H, N, N): rows are queries and sum to 1; rows that may attend to nothing are 0.

        Args:
            rows: Only these queries.
        """
        logits = self.logits(rows)
        probabilities = logits.softmax(-1)
        if self.mask is None and not self.causal:
            return probabilities
        return probabilities.masked_fill(logits.isneginf().all(-1, keepdim=True), 0.0)

    def gradient(self, z_gradient: Tensor) -> Tensor:
        """`dy/dA = (dy/dz) v^T`, (B, H, N, N), without a softmax in the graph.

        Args:
            z_gradient: dy/dz, (B, H, N, d), or some of its rows.
        """
        dtype = torch.promote_types(z_gradient.dtype, torch.float32)
        return z_gradient.to(dtype) @ self.values().to(dtype).mT

    def keys(self) -> Tensor:
        """`k` of every query head, (B, H, N, d), without a graph."""
        return _per_head(self.key, self.query.shape[1]).detach()

    def values(self) -> Tensor:
        """`v` of every query head, (B, H, N, d), without a graph."""
        return _per_head(self.value, self.query.shape[1]).detach()


def _per_head(tensor: Tensor, heads: int) -> Tensor:
    """Repeat grouped keys or values so that every query head has its own."""
    return tensor if tensor.shape[1] == heads else tensor.repeat_interleave(heads // tensor.shape[1], dim=1)
