"""Methods beside each other on the same images: all pairs, and who is marked in a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import combinations

import torch
from scipy import stats
from torch import Tensor

from mhex.errors import ArgumentError
from mhex.metrics.resampling import Summary, bootstrap
from mhex.metrics.statistics import FLIPS, exchange, holm, sign_flip

_FLIPS_PER_PAIR = 50  # so that the correction for many pairs leaves a p that can be small enough
_NAN = float("nan")
_NUMBERS = ("difference", "low", "high", "p", "adjusted", "wilcoxon", "effect", "superiority")


@dataclass(frozen=True)
class Paired:
    """Two methods on the same images.

    Attributes:
        difference: Mean of first minus second.
        low, high: Ends of its bootstrap interval.
        p: Of the sign-flip test, two-sided.
        adjusted: The same corrected (Holm) for all pairs that were compared.
        wilcoxon: P of Wilcoxon's signed-rank test, as a check; NaN where there is no difference at all.
        effect: Mean difference over its spread (Cohen's d for pairs); 0 where there is no difference at all, infinite
            where it is the same for all images.
        superiority: Share of images on which the first is higher, ties counting half.
        n: Number of images that count.
        seed: Of flips and resamples.
        flips: How many were drawn, unless so few images differ that all ways to flip were tried.
        resamples: Of the bootstrap.
    """

    difference: float
    low: float
    high: float
    p: float
    adjusted: float
    wilcoxon: float
    effect: float
    superiority: float
    n: int
    seed: int
    flips: int
    resamples: int


@dataclass(frozen=True)
class Marks:
    """Who is printed as the best of a table.

    Attributes:
        marked: Of each method: the best alone where it is better than every other (corrected p below the level), else
            all that are not shown to be worse than the best.
        best: The method with the best mean; None without images.
        clear: Whether it is better than every other.
        adjusted: Corrected p against the best; NaN for itself and for methods without values.
        n: Images that count for every method that has values.
        skipped: Images that do not.
        level: Of significance.
    """

    marked: tuple[bool, ...]
    best: int | None
    clear: bool
    adjusted: tuple[float, ...]
    n: int
    skipped: int
    level: float


def all_pairs(
    values: Tensor,
    seed: int = 0,
    flips: int | None = None,
    confidence: float = 0.95,
    resamples: int = 2000,
    clusters: Tensor | None = None,
    summary: Summary | None = None,
) -> dict[tuple[int, int], Paired]:
    """Every pair of methods on the images that count for all of them.

    Args:
        values: Per image and method, (n, M), or numbers (n, M, J) with a summary; NaN where an image does not count. A
            method without any value is left out.
        seed: Of flips and resamples, the same for all pairs.
        flips: How many are drawn; None for 10 000, or more where there are over 200 pairs.
        confidence: Of the intervals.
        resamples: Of the bootstrap.
        clusters: Group of each image, (n,): groups are drawn and flipped as a whole.
        summary: From numbers (..., n, J) to outputs (..., O), of which the first is compared, where the value of a data
            set is no mean over images. There are no differences of single images then, so that their effect sizes and
            Wilcoxon's p are NaN.

    Returns:
        By numbers of two methods, the smaller first.
    """
    alive, counted = complete(values, summary)
    methods, n = values.shape[1], int(counted.sum())
    keys = list(combinations(range(methods), 2))
    flips = max(FLIPS, _FLIPS_PER_PAIR * len(keys)) if flips is None else flips
    missing = Paired(_NAN, _NAN, _NAN, _NAN, _NAN, _NAN, _NAN, _NAN, 0, seed, flips, resamples)
    found = dict.fromkeys(keys, missing)
    real = [(i, j) for i, j in keys if alive[i] and alive[j]]
    if not real or not n:
        return found
    first, second = (list(side) for side in zip(*real, strict=True))
    table = values.detach().double().cpu()[counted]
    groups = None if clusters is None else torch.as_tensor(clusters).cpu()[counted]

    def differences(rows: Tensor) -> Tensor:
        totals = _totals(rows.view(*rows.shape[:-1], methods, -1), summary)
        return totals[..., first] - totals[..., second]

    rows = table.flatten(1)
    ends = bootstrap(rows, differences, resamples, confidence, seed, clusters=groups)
    if summary is None:
        p, wilcoxon, effect, higher = _of_images(table[:, first] - table[:, second], groups, seed, flips)
    else:
        tests = [exchange(table[:, i], table[:, j], summary, seed, flips, groups)[0] for i, j in real]
        p = torch.stack(tests)
        wilcoxon = effect = higher = torch.full_like(p, torch.nan)
    columns = (
        differences(rows),
        ends.low,
        ends.high,
        p,
        torch.tensor(holm(p), dtype=p.dtype),
        wilcoxon,
        effect,
        higher,
    )
    for key, row in zip(real, torch.stack(columns, 1).tolist(), strict=True):
        numbers = dict(zip(_NUMBERS, row, strict=True))
        found[key] = replace(missing, **numbers, n=n)
    return found


def _totals(rows: Tensor, summary: Summary | None) -> Tensor:
    """Values of the data set, (..., M), from numbers (..., n, M, J)."""
    if summary is None:
        return rows.mean(-3)[..., 0]
    return summary(rows.movedim(-2, -3))[..., 0]


def _of_images(d: Tensor, groups: Tensor | None, seed: int, flips: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of differences (n, P): p of flips and of Wilcoxon, effect size, and share of images where the first is higher."""
    sums, means = d, d
    if groups is not None:
        number = torch.unique(groups, return_inverse=True)[1]
        sums = d.new_zeros(int(number.max()) + 1, d.shape[1]).index_add(0, number, d)
        means = sums / number.bincount()[:, None]
    wilcoxon = [float(stats.wilcoxon(one.numpy()).pvalue) if bool(one.any()) else _NAN for one in means.unbind(1)]
    mean = d.mean(0)
    spread = d.std(0) if len(d) > 1 else torch.zeros_like(mean)
    spread = torch.where(spread <= 1e-12 * mean.abs(), 0.0, spread)  # rounding is no spread
    effect = torch.where(mean == 0, 0.0, mean / spread)
    higher = (d > 0).double().mean(0) + (d == 0).double().mean(0) / 2
    return sign_flip(sums, seed, flips), torch.tensor(wilcoxon, dtype=torch.float64), effect, higher


def paired(
    first: Tensor,
    second: Tensor,
    seed: int = 0,
    flips: int | None = None,
    confidence: float = 0.95,
    resamples: int = 2000,
    clusters: Tensor | None = None,
) -> Paired:
    """Compare values (n,) of two methods on the same images; an image without a value of either does not count."""
    if first.shape != second.shape or first.dim() != 1:
        raise ArgumentError(
            f"Expected values (n,) of the same images, but got {tuple(first.shape)} and {tuple(second.shape)}."
        )
    both = torch.stack([first.double().cpu(), second.double().cpu()], 1)
    return all_pairs(both, seed, flips, confidence, resamples, clusters)[0, 1]


def marks(
    values: Tensor,
    higher: bool = True,
    level: float = 0.05,
    seed: int = 0,
    clusters: Tensor | None = None,
    pairs: Mapping[tuple[int, int], Paired] | None = None,
    summary: Summary | None = None,
) -> Marks:
    """Who is marked in a column of a table.

    Args:
        values: Per image and method, (n, M), or (n, M, J) with a summary; NaN where an image does not count.
        higher: Whether higher is better.
        level: Of significance.
        seed: Of the tests.
        clusters: As for `all_pairs`.
        pairs: What `all_pairs` found of the same values, where it is known.
        summary: As for `all_pairs`.
    """
    alive, counted = complete(values, summary)
    methods, n = values.shape[1], int(counted.sum())
    skipped = len(values) - n
    if not n:
        return Marks((False,) * methods, None, False, (_NAN,) * methods, 0, skipped, level)
    table = values.detach().double().cpu()[counted]
    totals = _totals(table.view(n, methods, -1), summary) * (1 if higher else -1)
    best = int(totals.masked_fill(~alive, -torch.inf).argmax())
    found = all_pairs(values, seed, clusters=clusters, summary=summary) if pairs is None else pairs
    adjusted = [_NAN if m == best else found[min(m, best), max(m, best)].adjusted for m in range(methods)]
    worse = [p < level for p in adjusted]  # NaN is not
    marked = tuple(bool(alive[m]) and not worse[m] for m in range(methods))
    return Marks(marked, best, sum(marked) == 1, tuple(adjusted), n, skipped, level)


def complete(values: Tensor, summary: Summary | None = None) -> tuple[Tensor, Tensor]:
    """Methods with any value, bool (M,), and images that count for all of these, bool (n,).

    Args:
        values: (n, M), or (n, M, J) with a summary.
        summary: That makes one value of J numbers of many images.
    """
    if values.dim() != (2 if summary is None else 3) or not values.shape[1]:
        wanted = "(n, M)" if summary is None else "(n, M, J)"
        raise ArgumentError(f"Expected values per image and method, {wanted}, but got shape {tuple(values.shape)}.")
    finite = values.detach().cpu().isfinite().view(*values.shape[:2], -1).all(2)
    alive = finite.any(0)
    return alive, finite[:, alive].all(1) & bool(alive.any())
