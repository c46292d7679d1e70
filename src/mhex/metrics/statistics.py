"""Is a difference real? Intervals, paired tests and corrections, over images and never over pixels or steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from mhex.errors import ArgumentError

_AT_A_TIME = 20_000_000  # numbers that a part of the resamples may hold
_EXACT = 12  # so many images are flipped in every way


def bootstrap(
    rows: Tensor,
    summary: Callable[[Tensor], Tensor],
    resamples: int = 2000,
    confidence: float = 0.95,
    seed: int = 0,
) -> tuple[Tensor, Tensor]:
    """Percentile interval of a summary, over images drawn with replacement: lower and upper ends (O,).

    Args:
        rows: Numbers per image, (n, J).
        summary: From numbers (..., n, J) to outputs (..., O).
        resamples: How often images are drawn.
        confidence: Share of resamples inside.
        seed: Of the draws.
    """
    if not 0 < confidence < 1:
        raise ArgumentError(f"Expected confidence between 0 and 1, but got {confidence!r}.")
    rows = rows.cpu()
    draw = torch.Generator().manual_seed(seed)
    part = max(1, _AT_A_TIME // max(1, rows.numel()))
    found = []
    for start in range(0, resamples, part):
        picked = torch.randint(len(rows), (min(part, resamples - start), len(rows)), generator=draw)
        found.append(summary(rows[picked]))
    ends = torch.tensor([(1 - confidence) / 2, (1 + confidence) / 2], dtype=rows.dtype)
    low, high = torch.cat(found).quantile(ends, 0)
    return low, high


@dataclass(frozen=True)
class Paired:
    """Two methods on the same images.

    Attributes:
        difference: Mean of first minus second.
        low, high: Ends of its bootstrap interval.
        p: Of the sign-flip test, two-sided.
        wilcoxon: Of Wilcoxon's signed-rank test, as a check; NaN where all differences are zero.
        effect: Mean difference over its spread (Cohen's d for pairs); 0 where there is no difference at all.
        n: Number of images that count for both.
    """

    difference: float
    low: float
    high: float
    p: float
    wilcoxon: float
    effect: float
    n: int


def paired(first: Tensor, second: Tensor, seed: int = 0, flips: int = 10_000, confidence: float = 0.95) -> Paired:
    """Compare values (n,) of two methods on the same images; an image without a value of either does not count."""
    both = first.isfinite() & second.isfinite()
    d = (first - second)[both].double().cpu()
    if not len(d):
        nan = float("nan")
        return Paired(nan, nan, nan, nan, nan, nan, 0)
    low, high = bootstrap(d[:, None], lambda rows: rows.mean(-2), 2000, confidence, seed)
    spread = float(d.std()) if len(d) > 1 else 0.0
    mean = float(d.mean())
    effect = mean / spread if spread else 0.0 if mean == 0 else float(np.copysign(np.inf, mean))
    rank = float(stats.wilcoxon(d.numpy()).pvalue) if bool(d.any()) else float("nan")
    return Paired(mean, float(low), float(high), sign_flip(d, seed, flips), rank, effect, len(d))


def sign_flip(d: Tensor, seed: int = 0, flips: int = 10_000) -> float:
    """Two-sided p of differences (n,) under flips of their signs: exact for few images, else `(b + 1) / (m + 1)`."""
    d = d.double().cpu()
    d = d[d != 0] if len(d) > _EXACT else d
    n, observed = len(d), float(d.sum().abs())
    least = observed - 1e-12 * float(d.abs().sum())
    if n <= _EXACT:
        bits = (torch.arange(2**n)[:, None] >> torch.arange(n)) & 1
        return float(((2.0 * bits.double() - 1) @ d).abs().ge(least).double().mean())
    draw = torch.Generator().manual_seed(seed)
    part, reached = max(1, _AT_A_TIME // n), 0
    for start in range(0, flips, part):
        signs = torch.randint(0, 2, (min(part, flips - start), n), generator=draw).double() * 2 - 1
        reached += int((signs @ d).abs().ge(least).sum())
    return (reached + 1) / (flips + 1)


def holm(p: Sequence[float]) -> list[float]:
    """P-values corrected for many comparisons, in the order given; NaN stays NaN and does not count."""
    values = np.asarray(p, dtype=float)
    counted = np.flatnonzero(~np.isnan(values))
    order = counted[np.argsort(values[counted], kind="stable")]
    found, highest = np.full(len(values), np.nan), 0.0
    for place, index in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - place) * values[index]))
        found[index] = highest
    return [float(value) for value in found]


def mcnemar(first: Tensor, second: Tensor) -> float:
    """Exact p of two methods' hits (n,) on the same images."""
    first, second = first.bool(), second.bool()
    alone, other = int((first & ~second).sum()), int((~first & second).sum())
    if alone + other == 0:
        return 1.0
    return float(stats.binomtest(alone, alone + other).pvalue)


def pearson(x: Tensor, y: Tensor) -> tuple[float, float, float]:
    """Correlation of (n,) and (n,), its t, and the two-sided p; NaN for fewer than 3 pairs or no variance."""
    x, y = x.double() - x.double().mean(), y.double() - y.double().mean()
    n, size = len(x), float(x.square().sum() * y.square().sum())
    if n < 3 or size <= 0:
        return (float("nan"),) * 3
    r = max(-1.0, min(1.0, float((x * y).sum()) / size**0.5))
    if abs(r) == 1:
        return r, float(np.copysign(np.inf, r)), 0.0
    return r, r * ((n - 2) / (1 - r * r)) ** 0.5, float(stats.beta((n - 2) / 2, 0.5).cdf(1 - r * r))


def mean_ranks(values: Tensor, higher: bool, resamples: int = 2000, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Mean rank of each method over images, 1 the best, and the ends of its interval, each (M,).

    Args:
        values: (n, M), finite; ties share their rank.
        higher: Whether higher is better.
        resamples: Of the bootstrap.
        seed: Of the bootstrap.
    """
    table = torch.from_numpy(stats.rankdata((-values if higher else values).cpu().numpy(), axis=1))
    low, high = bootstrap(table, lambda rows: rows.mean(-2), resamples, seed=seed)
    return table.mean(0), low, high
