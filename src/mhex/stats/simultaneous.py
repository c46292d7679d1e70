"""What many paired differences show together: the confidence set of the best, tests above 0, and intervals.

All three hold for all methods at once, because they read the distribution of the largest statistic. It is made by
flips of the signs of whole images, so that methods on the same images keep their correlation. Where differences are
symmetric around 0, the flips are exact for every number of images. Skewed differences are allowed for by the statistic
of Hall (1992), which shrinks a mean that lies on the short side of a skewed sample.

Tests go step by step (Romano and Wolf, 2005): what is shown is taken out, and the rest is tested among itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from mhex._settings import check_that
from mhex.stats.intervals import Interval
from mhex.stats.paired_tests import MAX_EXACT, all_flips, drawn_flips

MIN_IMAGES = 6  # images: flips of the signs of five show nothing at 0.05, two-sided, because 2 of 32 look alike
FAMILY_FLIPS = 4000  # of signs, where they are too many to try all
_CHUNK = 1_000_000  # numbers that a part of the flips may hold
_ROUNDING = 1e-12  # share of the mean square below which a variance is rounding
_TOLERANCE = 1e-6  # statistics that differ by a smaller share are equal: sums in another order have other last digits


def best_set(values: Tensor, level: float = 0.05, seed: int = 0) -> Tensor:
    """Which methods may be the best, bool (M,): the confidence set of all that share the highest mean.

    The probability that any method with the highest mean is outside is at most the level, also where all are equal. A
    method is outside if another one in the set is shown to be above it, by the largest statistic over all pairs in the
    set; then the rest is tested again. This is the model confidence set of Hansen, Lunde and Nason (2011) with their
    statistic of the range. Hsu (1984) bounds the error for a single best, which is not enough where several are equal.

    Args:
        values: Numbers of each image and method, (n, M), higher being better; NaN where an image does not count.
        level: Of the error.
        seed: Of the flips.
    """
    check_that(values.dim() == 2, "values of each image and method, (n, M)", f"shape {tuple(values.shape)}")
    count = values.shape[1]
    members = torch.ones(count, dtype=torch.bool)
    first, second = torch.triu_indices(count, count, 1)
    observed, drawn = _statistics(values[:, first] - values[:, second], seed, hall=True)
    drawn = drawn.abs()
    while int(members.sum()) > 1:
        pairs = members[first] & members[second]
        rejected = _p(observed[pairs].abs(), drawn[:, pairs]) <= level
        losers = torch.where(observed[pairs] > 0, second[pairs], first[pairs])[rejected]
        survivors = members.clone()
        survivors[losers] = False
        # Without images in common, methods may be above each other in a circle; then nothing is shown.
        if not len(losers) or not bool(survivors.any()):
            break
        members = survivors
    return members


def shown_above_zero(differences: Tensor, level: float = 0.05, seed: int = 0) -> Tensor:
    """Which means are shown to be above 0, bool (P,), of differences (n, P); NaN where an image does not count.

    One-sided. The probability that any mean that is 0 or below is among them is at most the level.
    """
    check_that(differences.dim() == 2, "differences (n, P)", f"shape {tuple(differences.shape)}")
    observed, drawn = _statistics(differences, seed, hall=True)
    rejected = torch.zeros(len(observed), dtype=torch.bool)
    while not bool(rejected.all()):
        further = torch.zeros_like(rejected)
        further[~rejected] = _p(observed[~rejected], drawn[:, ~rejected]) <= level
        if not bool(further.any()):
            break
        rejected |= further
    return rejected


def means_with_intervals(numbers: Tensor, seed: int = 0) -> tuple[Tensor, Interval]:
    """Means (P,) of numbers (n, P), and 95 % intervals that cover them together; NaN where an image does not count.

    Any mean may be picked after a look at the numbers, such as the highest, and its interval still covers. Ends are NaN
    for fewer images than `MIN_IMAGES`, and infinite where the values of images are so alike that flips can make all of
    them equal.
    """
    check_that(numbers.dim() == 2, "numbers (n, P)", f"shape {tuple(numbers.shape)}")
    table = numbers.detach().double().cpu()
    counts, means = table.isfinite().sum(0), table.where(table.isfinite(), torch.nan).nanmean(0)
    spread = (table - means).square().where(table.isfinite(), torch.nan).nanmean(0).sqrt()  # divided by n
    half = torch.full_like(means, torch.nan)
    valid = counts >= MIN_IMAGES
    if bool(valid.any()):
        _, drawn = _statistics((table - means)[:, valid], seed, hall=False)
        largest = drawn.abs().amax(1).sort().values
        bound = float(largest[math.ceil(0.95 * len(largest)) - 1])
        bound = bound if bound < 1e3 else math.inf
        half[valid] = torch.where(spread[valid] > 0, bound * spread[valid] / counts[valid].sqrt(), 0.0)
    return means, Interval(means - half, means + half)


def _p(observed: Tensor, drawn: Tensor) -> Tensor:
    """Share of the flips whose largest statistic, of those drawn (F, P), is as large as each observed one, (P,)."""
    largest = drawn.amax(1).sort().values
    below = torch.searchsorted(largest, observed - _TOLERANCE * observed.abs())
    return 1 - below.double() / len(largest)


def _statistics(differences: Tensor, seed: int, hall: bool) -> tuple[Tensor, Tensor]:
    """Studentized means of differences (n, P), (P,), and the same under flips of signs of images, (F, P), float32.

    Columns of fewer images than `MIN_IMAGES` have 0 everywhere, so that they show nothing.
    """
    d = differences.detach().double().cpu()
    finite = d.isfinite()
    counts = finite.sum(0)
    d = d.where(finite & (counts >= MIN_IMAGES), 0.0)
    counts = counts.clamp_min(1).double()
    scale = (d.square().sum(0) / counts).sqrt()
    d = d / scale.where(scale > 0, 1.0)
    d = d[d.any(1)]
    cubes, signs = d**3, _signs(len(d), seed)
    drawn = torch.empty(len(signs), d.shape[1])
    part = max(1, _CHUNK // max(1, d.shape[1]))
    for start in range(0, len(signs), part):
        chunk = signs[start : start + part]
        drawn[start : start + part] = _studentized(chunk @ d / counts, chunk @ cubes / counts, counts, hall).float()
    return drawn[0].clone(), drawn  # the first flip is none


def _studentized(mean: Tensor, third: Tensor, counts: Tensor, hall: bool) -> Tensor:
    """Means over their errors from the first and third moments of numbers with a mean square of 1."""
    variance = (1 - mean.square()).clamp_min(_ROUNDING)
    z = mean / variance.sqrt()
    if hall:
        skew = (third - 3 * mean + 2 * mean**3) / variance**1.5
        skew = skew.clamp(-counts.sqrt(), counts.sqrt())  # more is rounding
        z = z + skew * z.square() / 3 + skew.square() * z**3 / 27 + skew / (6 * counts)
    result: Tensor = z * counts.sqrt()
    return result


def _signs(images: int, seed: int) -> Tensor:
    """Rows of signs, (F, n), float64: all there are, or a random sample; the first row flips nothing."""
    if images <= MAX_EXACT:
        return 1 - 2 * all_flips(images)
    flips = drawn_flips(FAMILY_FLIPS - 1, images, FAMILY_FLIPS, seed)
    return 1 - 2 * torch.cat([torch.zeros(1, images, dtype=torch.float64), *flips])


def holm(p: Sequence[float] | Tensor) -> list[float]:
    """P-values corrected for many comparisons, in the order given; NaN stays NaN and does not count."""
    values = np.asarray(p, dtype=float)
    places = np.flatnonzero(~np.isnan(values))
    order = places[np.argsort(values[places], kind="stable")]
    adjusted = np.full(len(values), np.nan)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(values[order] * np.arange(len(order), 0, -1)))
    return [float(value) for value in adjusted]
