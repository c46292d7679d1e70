"""Places of methods, with intervals."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mhex.errors import ArgumentError
from mhex.metrics.comparison import present
from mhex.metrics.resampling import resampled


@dataclass(frozen=True, eq=False)
class Ranking:
    """Places of methods, 1 the best, each (M,); equal ones share their place.

    Attributes:
        place, place_low, place_high: By the mean over images, and ends of its bootstrap interval.
        rank, rank_low, rank_high: Mean over images of the place on each, with its interval.
        first: Share of resamples in which the mean was the best; ties are shared out.
        n: Images that count for every method.
    """

    place: Tensor
    place_low: Tensor
    place_high: Tensor
    rank: Tensor
    rank_low: Tensor
    rank_high: Tensor
    first: Tensor
    n: int


def ranking(
    values: Tensor,
    higher: bool = True,
    resamples: int = 2000,
    confidence: float = 0.95,
    seed: int = 0,
    clusters: Tensor | None = None,
) -> Ranking:
    """Places of methods with intervals, over the images that count for every method.

    Args:
        values: Per image and method, (n, M); NaN where an image does not count.
        higher: Whether higher is better.
        resamples: Of the bootstrap.
        confidence: Of the intervals.
        seed: Of the bootstrap.
        clusters: Group of each image, (n,).
    """
    counted = present(values).all(1)
    if not bool(counted.any()):
        raise ArgumentError("Expected images with values of all methods; leave out methods that have none.")
    table = values.detach().double().cpu()[counted] * (-1 if higher else 1)
    groups = None if clusters is None else torch.as_tensor(clusters).cpu()[counted]
    methods = table.shape[1]
    rows = torch.cat([table, _places(table)], 1)

    def summary(part: Tensor) -> Tensor:
        means = part.mean(-2)
        place = _places(means[..., :methods])
        on_top = (means[..., :methods] == means[..., :methods].amin(-1, keepdim=True)).double()
        return torch.cat([place, means[..., methods:], on_top / on_top.sum(-1, keepdim=True)], -1)

    draws = resampled(rows, summary, resamples, seed, groups)
    low, high = draws.quantile(torch.tensor([(1 - confidence) / 2, (1 + confidence) / 2]).to(draws), 0)
    value, place, rank = summary(rows), slice(0, methods), slice(methods, 2 * methods)
    by_mean = (value[place], low[place], high[place])
    return Ranking(*by_mean, value[rank], low[rank], high[rank], draws[:, 2 * methods :].mean(0), len(rows))


def _places(values: Tensor) -> Tensor:
    """Places along the last axis, the lowest value 1; equal ones share the mean of theirs."""
    lower = (values[..., None, :] < values[..., :, None]).double().sum(-1)
    equal = (values[..., None, :] == values[..., :, None]).double().sum(-1)
    return lower + (equal + 1) / 2
