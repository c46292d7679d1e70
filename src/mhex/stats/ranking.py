"""Places of methods, with intervals."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from mhex.errors import ArgumentError
from mhex.stats.comparison import present
from mhex.stats.intervals import Summary, resampled


@dataclass(frozen=True)
class Rank:
    """Places of one method, 1 the best; equal ones share theirs.

    Attributes:
        place, place_low, place_high: By the value of all images, and ends of its bootstrap interval.
        rank, rank_low, rank_high: Mean over images of the place on each, with its interval; NaN where there are no
            values of single images.
        first: Share of resamples in which it was the best; ties are shared out.
        n: Images that count for every method.
    """

    place: float
    place_low: float
    place_high: float
    rank: float
    rank_low: float
    rank_high: float
    first: float
    n: int


@dataclass(frozen=True, eq=False)
class Ranking:
    """Places of methods as those of `Rank`, each (M,)."""

    place: Tensor
    place_low: Tensor
    place_high: Tensor
    rank: Tensor
    rank_low: Tensor
    rank_high: Tensor
    first: Tensor
    n: int

    @property
    def methods(self) -> list[Rank]:
        """The same for each method."""
        names = [field.name for field in fields(Rank) if field.name != "n"]
        numbers = torch.stack([getattr(self, name) for name in names], 1).tolist()
        return [Rank(**dict(zip(names, row, strict=True)), n=self.n) for row in numbers]


def ranking(
    values: Tensor,
    higher: bool = True,
    resamples: int = 2000,
    confidence: float = 0.95,
    seed: int = 0,
    clusters: Tensor | None = None,
    summary: Summary | None = None,
) -> Ranking:
    """Places of methods with intervals, over the images that count for every method.

    Unlike pairs, places need the same images for all: the third of five is not the third of eight.

    Args:
        values: Per image and method, (n, M), or numbers (n, M, J) with a summary; NaN where an image does not count.
        higher: Whether higher is better.
        resamples: Of the bootstrap.
        confidence: Of the intervals.
        seed: Of the bootstrap.
        clusters: Group of each image, (n,).
        summary: From numbers (..., n, J) to outputs (..., O), of which the first is ranked, where the value of a data
            set is no mean over images; there are no places on single images then.
    """
    there = present(values, summary)
    counted = there.all(1)
    if not bool(counted.any()):
        most, least = int(there.sum(0).max()), int(there.sum(0).min())
        raise ArgumentError(
            f"Expected images with values of all methods, but there are none: the methods have {least} to {most} of "
            f"{len(there)} images. Leave out those that have few."
        )
    methods, sign = values.shape[1], -1 if higher else 1
    table = values.detach().double().cpu()[counted] * (sign if summary is None else 1)
    groups = None if clusters is None else torch.as_tensor(clusters).cpu()[counted]
    single = _places(table) if summary is None else table.new_full((len(table), methods), torch.nan)
    rows = torch.cat([table.flatten(1), single], 1)

    def places(part: Tensor) -> Tensor:
        numbers, means = part[..., :-methods], part[..., -methods:].mean(-2)
        numbers = numbers.reshape(*numbers.shape[:-1], methods, -1)
        totals = numbers.mean(-3)[..., 0] if summary is None else sign * summary(numbers.movedim(-2, -3))[..., 0]
        on_top = (totals == totals.amin(-1, keepdim=True)).double()
        found = torch.cat([_places(totals), means, on_top / on_top.sum(-1, keepdim=True)], -1)
        # Where one value is not defined, nobody has a place.
        return found.where(totals.isfinite().all(-1, keepdim=True), torch.nan)

    draws = resampled(rows, places, resamples, seed, groups)
    low, high = draws.nanquantile(torch.tensor([(1 - confidence) / 2, (1 + confidence) / 2]).to(draws), 0)
    value, place, rank = places(rows), slice(0, methods), slice(methods, 2 * methods)
    by_value = (value[place], low[place], high[place])
    return Ranking(*by_value, value[rank], low[rank], high[rank], draws[:, 2 * methods :].nanmean(0), len(rows))


def _places(values: Tensor) -> Tensor:
    """Places along the last axis, the lowest value 1; equal ones share the mean of theirs."""
    lower = (values[..., None, :] < values[..., :, None]).double().sum(-1)
    equal = (values[..., None, :] == values[..., :, None]).double().sum(-1)
    return lower + (equal + 1) / 2
