"""What many paired differences show together: the confidence set of the best, tests above 0, and intervals.

All three hold for all methods at once, because they read the distribution of the largest statistic. It is made by
flips of the signs of whole images, so that methods on the same images keep their correlation. Where differences are
symmetric around 0, the flips are exact for every number of images. Skewed differences are allowed for by the statistic
of Hall (1992), which shrinks a mean that lies on the short side of a skewed sample.

Tests go step by step (Romano and Wolf, 2005): what is shown is taken out, and the rest is tested among itself.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mhex._settings import check_seed, check_that
from mhex.stats.intervals import Interval

LEAST = 6  # images: flips of the signs of five show nothing at 0.05, two-sided, because 2 of 32 look alike
FLIPS = 4000
_EXACT = 12  # the signs of so many images are flipped in every way
_AT_A_TIME = 1_000_000  # numbers that a part of the flips may hold
_NO_SPREAD = 1e-12  # share of the mean square below which a variance is rounding
_ALIKE = 1e-6  # statistics that differ by a smaller share are equal: sums in another order have other last digits


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
        shown = _p(observed[pairs].abs(), drawn[:, pairs]) <= level
        losers = torch.where(observed[pairs] > 0, second[pairs], first[pairs])[shown]
        rest = members.clone()
        rest[losers] = False
        # Without images in common, methods may be above each other in a circle; then nothing is shown.
        if not len(losers) or not bool(rest.any()):
            break
        members = rest
    return members


def shown_above_zero(differences: Tensor, level: float = 0.05, seed: int = 0) -> Tensor:
    """Which means are shown to be above 0, bool (P,), of differences (n, P); NaN where an image does not count.

    One-sided. The probability that any mean that is 0 or below is among them is at most the level.
    """
    check_that(differences.dim() == 2, "differences (n, P)", f"shape {tuple(differences.shape)}")
    observed, drawn = _statistics(differences, seed, hall=True)
    shown = torch.zeros(len(observed), dtype=torch.bool)
    while not bool(shown.all()):
        further = torch.zeros_like(shown)
        further[~shown] = _p(observed[~shown], drawn[:, ~shown]) <= level
        if not bool(further.any()):
            break
        shown |= further
    return shown


def simultaneous(numbers: Tensor, confidence: float = 0.95, seed: int = 0) -> tuple[Tensor, Interval]:
    """Means (P,) of numbers (n, P), and intervals that cover all of them together; NaN where an image does not count.

    Any mean may be picked after a look at the numbers, such as the highest, and its interval still covers. Ends are NaN
    for fewer images than `LEAST`. They are infinite where images have so few different values that flips can make all
    of them equal.
    """
    check_that(numbers.dim() == 2, "numbers (n, P)", f"shape {tuple(numbers.shape)}")
    table = numbers.detach().double().cpu()
    counts, means = table.isfinite().sum(0), table.where(table.isfinite(), torch.nan).nanmean(0)
    spread = (table - means).square().where(table.isfinite(), torch.nan).nanmean(0).sqrt()  # divided by n
    half = torch.full_like(means, torch.nan)
    known = counts >= LEAST
    if bool(known.any()):
        _, drawn = _statistics((table - means)[:, known], seed, hall=False)
        largest = drawn.abs().amax(1).sort().values
        bound = float(largest[math.ceil(confidence * len(largest)) - 1])
        bound = bound if bound < 1e3 else math.inf
        half[known] = torch.where(spread[known] > 0, bound * spread[known] / counts[known].sqrt(), 0.0)
    return means, Interval(means - half, means + half)


def _p(observed: Tensor, drawn: Tensor) -> Tensor:
    """Share of the flips whose largest statistic, of those drawn (F, P), is as large as each observed one, (P,)."""
    largest = drawn.amax(1).sort().values
    below = torch.searchsorted(largest, observed - _ALIKE * observed.abs())
    return 1 - below.double() / len(largest)


def _statistics(differences: Tensor, seed: int, hall: bool) -> tuple[Tensor, Tensor]:
    """Studentized means of differences (n, P), (P,), and the same under flips of signs of images, (F, P), float32.

    Columns of fewer images than `LEAST` have 0 everywhere, so that they show nothing.
    """
    d = differences.detach().double().cpu()
    finite = d.isfinite()
    counts = finite.sum(0)
    d = d.where(finite & (counts >= LEAST), 0.0)
    counts = counts.clamp_min(1).double()
    scale = (d.square().sum(0) / counts).sqrt()
    d = d / scale.where(scale > 0, 1.0)
    d = d[d.any(1)]
    cubes, signs = d**3, _signs(len(d), seed)
    drawn = torch.empty(len(signs), d.shape[1])
    part = max(1, _AT_A_TIME // max(1, d.shape[1]))
    for start in range(0, len(signs), part):
        some = signs[start : start + part]
        drawn[start : start + part] = _studentized(some @ d / counts, some @ cubes / counts, counts, hall).float()
    return drawn[0].clone(), drawn  # the first flip is none


def _studentized(mean: Tensor, third: Tensor, counts: Tensor, hall: bool) -> Tensor:
    """Means over their errors from the first and third moments of numbers with a mean square of 1."""
    variance = (1 - mean.square()).clamp_min(_NO_SPREAD)
    z = mean / variance.sqrt()
    if hall:
        skew = (third - 3 * mean + 2 * mean**3) / variance**1.5
        skew = skew.clamp(-counts.sqrt(), counts.sqrt())  # more is rounding
        z = z + skew * z.square() / 3 + skew.square() * z**3 / 27 + skew / (6 * counts)
    result: Tensor = z * counts.sqrt()
    return result


def _signs(images: int, seed: int) -> Tensor:
    """Rows of signs, (F, n), float64: all there are, or some that are drawn; the first row flips nothing."""
    if images <= _EXACT:
        return 1 - 2 * ((torch.arange(2**images)[:, None] >> torch.arange(images)) & 1).double()
    generator = torch.Generator().manual_seed(check_seed("seed", seed) % 2**63)
    drawn = 1 - 2 * torch.randint(0, 2, (FLIPS - 1, images), generator=generator, dtype=torch.float64)
    return torch.cat([torch.ones(1, images, dtype=torch.float64), drawn])
