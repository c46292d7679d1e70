"""Correlations of rows."""

from __future__ import annotations

import torch
from torch import Tensor

from mhex._correlation import correlation

__all__ = ["correlation", "mean_ranks", "rank_correlation"]


def rank_correlation(first: Tensor, second: Tensor) -> Tensor:
    """Spearman's rho of rows (..., n) and (..., n), equal values sharing their rank; NaN where a row is constant."""
    return correlation(mean_ranks(first), mean_ranks(second))


def mean_ranks(values: Tensor) -> Tensor:
    """Ranks of the values of rows (..., n), from 0 on, equal ones with the mean of their ranks; float64."""
    rows = values.reshape(-1, values.shape[-1])
    ordered, order = rows.sort(dim=1)
    group = _groups(ordered)
    places = torch.arange(rows.shape[1], dtype=torch.float64, device=rows.device).expand(rows.shape)
    total, number = torch.zeros_like(places), torch.zeros_like(places)
    total = total.scatter_add(1, group, places)
    number = number.scatter_add(1, group, torch.ones_like(places))
    mean = (total / number.clamp_min(1)).gather(1, group)
    return torch.zeros_like(places).scatter(1, order, mean).view(values.shape)


def _groups(ordered: Tensor) -> Tensor:
    """Number of the group of equal values that each of the ordered values (M, n) belongs to."""
    new = torch.zeros_like(ordered, dtype=torch.long)
    new[:, 1:] = (ordered[:, 1:] != ordered[:, :-1]).long()
    return new.cumsum(1)
