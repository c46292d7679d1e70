"""Is a difference real? Paired tests over images, by flips of signs."""

from collections.abc import Iterator

import torch
from torch import Tensor

from mhex._settings import check_seed, check_that
from mhex.stats.intervals import Summary

PAIR_FLIPS = 10_000  # of signs, where they are too many to try all
MAX_EXACT = 12  # images whose signs are flipped in every way
_CHUNK = 4_000_000  # numbers that a part of the flips may hold


def sign_flip(d: Tensor, seed: int = 0, flips: int = PAIR_FLIPS) -> Tensor:
    """Two-sided p of differences under flips of their signs: the share of flips whose sum is as far from 0.

    Exact where few images differ; else of m drawn flips, `(b + 1) / (m + 1)`. Flips are the same for all columns, which
    `scipy.stats.permutation_test` cannot do, and depend on torch's generator alone. Differences are (n,), or (n, P) for
    P pairs of methods, and 0 where an image does not count; the p are () or (P,).
    """
    if d.dim() == 1:
        return sign_flip(d[:, None], seed, flips)[0]
    d = d.double().cpu()
    advice = "; give 0 where an image does not count"
    check_that(bool(d.isfinite().all()), "finite differences", "NaN or infinity", advice)
    # Sums in another order differ in their last digits, and equal ones must count as equal.
    least = d.sum(0).abs() - 1e-12 * d.abs().sum(0)
    p = torch.full((d.shape[1],), torch.nan, dtype=torch.float64)
    few = (d != 0).sum(0) <= MAX_EXACT
    for column in few.nonzero()[:, 0].tolist():
        changing = d[:, column][d[:, column] != 0]
        sums = (2 * all_flips(len(changing)) - 1) @ changing
        p[column] = (sums.abs() >= least[column]).double().mean()
    if not bool(few.all()):
        many = d[:, ~few]
        reached = torch.zeros(many.shape[1], dtype=torch.long)
        for bits in drawn_flips(flips, len(d), max(1, _CHUNK // len(d)), seed):
            reached += ((2 * bits - 1) @ many).abs().ge(least[~few]).sum(0)
        p[~few] = (reached + 1).double() / (flips + 1)
    return p


def exchange(first: Tensor, second: Tensor, summary: Summary, seed: int = 0, flips: int = PAIR_FLIPS) -> Tensor:
    """Two-sided p of the difference of two summaries, under images changing sides, (O,); NaN where there is none.

    The sign-flip test for values of a data set that are no means over images, such as a ratio of sums: all of it is
    computed again each time. For a mean, both tests are the same. Both methods have numbers (n, J) of the same images,
    and the summary makes outputs (..., O) of numbers (..., n, J); `flips` are drawn where they are too many to try all.
    """
    first, second = first.double().cpu(), second.double().cpu()
    values = [summary(first), summary(second)]
    least = (values[0] - values[1]).abs() - 1e-12 * (values[0].abs() + values[1].abs())

    def reached(bits: Tensor) -> Tensor:
        moved = bits.bool()[:, :, None]
        change = summary(torch.where(moved, second, first)) - summary(torch.where(moved, first, second))
        return (~(change.abs() < least)).sum(0)  # what is not defined counts against a difference

    changing = (first != second).any(1).nonzero()[:, 0]
    if len(changing) <= MAX_EXACT:
        ways = torch.zeros(2 ** len(changing), len(first), dtype=torch.float64)
        ways[:, changing] = all_flips(len(changing))
        return (reached(ways).double() / len(ways)).where(least.isfinite(), torch.nan)
    count = torch.zeros_like(least, dtype=torch.long)
    for bits in drawn_flips(flips, len(first), max(1, _CHUNK // first.numel()), seed):
        count += reached(bits)
    return ((count + 1).double() / (flips + 1)).where(least.isfinite(), torch.nan)


def all_flips(images: int) -> Tensor:
    """All ways to flip signs of images, (2^n, n), float64, 1 for a flip."""
    return ((torch.arange(2**images)[:, None] >> torch.arange(images)) & 1).double()


def drawn_flips(flips: int, images: int, part: int, seed: int) -> Iterator[Tensor]:
    """Random flips, a part of them at a time, (M, n), float64, 1 for a flip."""
    generator = torch.Generator().manual_seed(check_seed("seed", seed) % 2**63)
    for start in range(0, flips, part):
        yield torch.randint(0, 2, (min(part, flips - start), images), generator=generator, dtype=torch.float64)


def at_floor(p: float, flips: int = PAIR_FLIPS) -> bool:
    """Whether p is the smallest that so many drawn flips can give: the true one may be smaller."""
    return abs(p * (flips + 1) - 1) < 1e-6
