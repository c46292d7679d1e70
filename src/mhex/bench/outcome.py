"""What a race has shown: the best, those that cannot be told from it, and those that random maps are as good as."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mhex.metrics.resampling import resampled
from mhex.metrics.statistics import holm, sign_flip

LEVEL = 0.05
_RESAMPLES = 4000
_TELLING = 8  # with fewer images, flips miss half of what is clear, so that they say nothing against a difference


@dataclass(frozen=True)
class Difference:
    """A difference that should be above 0, on the images that two methods have in common.

    Attributes:
        mean: Of the difference; NaN without a common image.
        own: P of the sign-flip test, two-sided.
        corrected: The same corrected (Holm) for all that were tested together.
        n: Images.
    """

    mean: float
    own: float
    corrected: float
    n: int

    @property
    def said(self) -> str:
        """What was shown: `"yes"`, `"likely"` (without the correction), `"no"`, or `"unknown"` by too few images."""
        if self.mean > 0 and self.own < LEVEL:
            return "yes" if self.corrected < LEVEL else "likely"
        return "no" if self.n >= _TELLING else "unknown"


@dataclass(frozen=True)
class Outcome:
    """Who won, and how sure that is.

    Attributes:
        order: Methods by how far they are behind the best on the images that both have; the best first.
        behind: Mean of the best less each method, and its 95 % bootstrap interval, by name; those of the best are 0.
        worse: The best against each method, by name.
        sure: Share of resamples of the images in which no method was ahead of the best.
        images: Images of each.
    """

    order: tuple[str, ...]
    behind: Mapping[str, tuple[float, float, float]]
    worse: Mapping[str, Difference]
    sure: float
    images: Mapping[str, int]

    @property
    def best(self) -> str:
        return self.order[0]

    @property
    def equals(self) -> tuple[str, ...]:
        """Methods that nothing speaks against: not worse than the best also by a test of its own."""
        return tuple(name for name in self.order[1:] if self.worse[name].said in ("no", "unknown"))


def outcome_of(values: Mapping[str, Tensor], last: Sequence[str], seed: int = 0) -> Outcome:
    """Who won.

    Pairs are tested by flips of signs, as in tables, with Holm's correction for all pairs with the best.

    Args:
        values: Score of each image, (n,), by method, without control maps; NaN where it has none.
        last: Methods of the last round, of which the one with the best mean has won.
        seed: Of the bootstrap.
    """
    common = torch.stack([values[name].isfinite() for name in last]).all(0)
    best = max(last, key=lambda name: _mean(values[name][common]))
    others = [name for name in values if name != best]
    differences = {name: values[best] - values[name] for name in others}  # NaN where either has no value
    shown = above_zero(list(differences.values()), seed)
    behind = {best: (0.0, 0.0, 0.0)}
    sure = 1.0
    if others:
        table = torch.stack([differences[name] for name in others], 1)
        used = table[table.isfinite().any(1)]
        draws = resampled(used, lambda rows: rows.nanmean(-2), _RESAMPLES, seed)
        ends = draws.nanquantile(torch.tensor([0.025, 0.975], dtype=draws.dtype), 0)
        for k, name in enumerate(others):
            behind[name] = (float(used[:, k].nanmean()), float(ends[0, k]), float(ends[1, k]))
        # Where a draw has no image of a method, it says nothing of that one.
        sure = float((draws.nan_to_num(math.inf) > 0).all(1).double().mean())
    order = sorted(others, key=lambda name: behind[name][0])
    counts = {name: int(one.isfinite().sum()) for name, one in values.items()}
    return Outcome((best, *order), behind, dict(zip(others, shown, strict=True)), sure, counts)


def above(values: Mapping[str, Tensor], floor: str, methods: Sequence[str], seed: int = 0) -> dict[str, Difference]:
    """Whether methods are better than a control map, by name.

    Args:
        values: Of each image, (n,), higher better, by method; NaN where there is none.
        floor: Name of the control.
        methods: Those to be tested.
        seed: Of the flips.
    """
    return dict(zip(methods, above_zero([values[name] - values[floor] for name in methods], seed), strict=True))


def above_zero(differences: Sequence[Tensor], seed: int = 0) -> list[Difference]:
    """Tests of differences, (n,) each, that should be above 0; NaN does not count.

    The same as in tables: two-sided sign flips, corrected for all, and then whether the mean is above 0.
    """
    if not differences:
        return []
    table = torch.stack(list(differences), 1).double().cpu()
    there = table.isfinite()
    counts, d = there.sum(0), table.where(there, 0.0)
    own = sign_flip(d, seed).tolist()
    means = (d.sum(0) / counts).tolist()
    return [Difference(*one) for one in zip(means, own, holm(own), counts.tolist(), strict=True)]


def _mean(values: Tensor) -> float:
    return float(values.mean()) if len(values) else -math.inf
