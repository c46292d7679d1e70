"""What a race has shown: the best, those that cannot be told from it, and those that random maps are as good as."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from scipy import stats
from torch import Tensor

from mhex.metrics.resampling import resampled
from mhex.metrics.statistics import holm

LEVEL = 0.05
_RESAMPLES = 4000
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Outcome:
    """Who won, and how sure that is.

    Attributes:
        order: Methods by how far they are behind the best on the images that both have; the best first.
        behind: Mean of the best less each method, and its 95 % bootstrap interval, by name; those of the best are 0.
        worse: P of each method against the best, by name: of its own, and corrected for all.
        sure: Share of resamples of the images in which no method was ahead of the best.
        images: Images of each.
    """

    order: tuple[str, ...]
    behind: Mapping[str, tuple[float, float, float]]
    worse: Mapping[str, tuple[float, float]]
    sure: float
    images: Mapping[str, int]

    @property
    def best(self) -> str:
        return self.order[0]

    @property
    def equals(self) -> tuple[str, ...]:
        """Methods that nothing speaks against: not worse than the best also by a test of its own."""
        return tuple(name for name in self.order[1:] if said(*self.worse[name]) == "no")


def said(own: float, corrected: float) -> str:
    """What a test has shown: `"yes"`, also after the correction; `"likely"`, by itself alone; or `"no"`."""
    return "yes" if corrected < LEVEL else "likely" if own < LEVEL else "no"


def outcome_of(values: Mapping[str, Tensor], last: Sequence[str], seed: int = 0) -> Outcome:
    """Who won.

    A race ends with few images for those who left early, and flips of the signs of six images can never reach a
    corrected p of 0.05 among twenty methods: so pairs are compared by Student's t, with Holm's correction.

    Args:
        values: Score of each image, (n,), by method, without control maps; NaN where it has none.
        last: Methods of the last round, of which the one with the best mean has won.
        seed: Of the bootstrap.
    """
    common = torch.stack([values[name].isfinite() for name in last]).all(0)
    best = max(last, key=lambda name: _mean(values[name][common]))
    others = [name for name in values if name != best]
    differences = {name: values[best] - values[name] for name in others}  # NaN where either has no value
    shown = tested(list(differences.values()))
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


def above(values: Mapping[str, Tensor], floor: str, methods: Sequence[str]) -> dict[str, str]:
    """Whether methods are better than a control map: `"yes"`, `"likely"` or `"no"`, by name.

    Args:
        values: Of each image, (n,), higher better, by method; NaN where there is none.
        floor: Name of the control.
        methods: Those to be tested.
    """
    found = tested([values[name] - values[floor] for name in methods])
    return {name: said(*pair) for name, pair in zip(methods, found, strict=True)}


def tested(differences: Sequence[Tensor]) -> list[tuple[float, float]]:
    """P of differences (n,) each that should be above 0, and the same corrected (Holm) for all; NaN does not count."""
    own = [larger(one[one.isfinite()]) for one in differences]
    return list(zip(own, holm(own), strict=True))


def larger(d: Tensor) -> float:
    """One-sided p of differences (n,) that should be above 0, by Student's t; 1 for fewer than two of them."""
    if len(d) < 2:
        return 1.0
    mean, spread = float(d.mean()), float(d.std())
    if spread <= _ROUNDING * abs(mean) or spread == 0:
        # The same on every image: as sure as so many signs are.
        return 0.5 ** len(d) if mean > 0 else 1.0
    return float(stats.t.sf(mean / (spread / math.sqrt(len(d))), len(d) - 1))


def _mean(values: Tensor) -> float:
    return float(values.mean()) if len(values) else -math.inf
