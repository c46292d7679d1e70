"""Average precision of many rankings at once."""

from __future__ import annotations

import torch
from torch import Tensor


def average_precision(scores: Tensor, positive: Tensor, counted: Tensor | None = None) -> Tensor:
    """`sum_t (R_t - R_(t-1)) P_t` over the distinct scores t from the highest on, (B,); NaN without a positive entry.

    Args:
        scores: (B, N). Equal ones are found together.
        positive: Bool (B, N).
        counted: Bool (B, N), False at entries that are left out.
    """
    scores = scores.double()
    if counted is not None:
        scores, positive = scores.masked_fill(~counted, -torch.inf), positive & counted
    order = scores.argsort(1, descending=True)
    scores, hit = scores.gather(1, order), positive.gather(1, order)
    place = torch.arange(scores.shape[1], device=scores.device).expand_as(scores)
    precision = hit.cumsum(1).double() / (place + 1)
    last = torch.ones_like(hit)
    last[:, :-1] = scores[:, :-1] != scores[:, 1:]
    # The end of the run of equal scores that each entry is in.
    end = place.masked_fill(~last, scores.shape[1]).flip(1).cummin(1).values.flip(1)
    return (precision.gather(1, end) * hit).sum(1) / hit.sum(1)
