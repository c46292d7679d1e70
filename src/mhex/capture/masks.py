"""Which tokens count: masks of every kind that models pass around."""

from __future__ import annotations

import torch
from torch import Tensor


def kept_tokens(mask: Tensor) -> Tensor:
    """Bool (B, T): True at tokens that a mask keeps.

    Args:
        mask: Boolean or integer (True or 1 means keep), or floating point, added to attention scores (0 means keep);
            (B, T), or (B, ..., Q, T) with one row per query, where a token counts if any query may look at it.
    """
    kept = mask >= 0 if mask.is_floating_point() else mask.bool()
    return kept if kept.dim() == 2 else kept.flatten(1, -2).any(1)


def first_and_last(ids: Tensor, real: Tensor) -> Tensor:
    """Bool (B, T): True at the first and the last real token of each sample, and at others with one of their ids.

    In BERT-like models these are the class and the separator token.

    Args:
        ids: Token ids, (B, T).
        real: Bool (B, T), False at padding.
    """
    last = real.shape[1] - 1 - real.flip(1).int().argmax(1)
    first = real.int().argmax(1)
    ends = torch.stack([ids.gather(1, first[:, None])[:, 0], ids.gather(1, last[:, None])[:, 0]], 1)
    return (ids[:, :, None] == ends[:, None, :]).any(-1) & real
