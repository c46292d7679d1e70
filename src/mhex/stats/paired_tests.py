"""Is a difference real? Paired tests, corrections, ranks and correlations, over images."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from mhex.errors import ArgumentError
from mhex.stats.correlation import Pearson, pearson
from mhex.stats.intervals import Interval, Summary, bootstrap, resampled

__all__ = [
    "Interval",
    "Pearson",
    "bootstrap",
    "exchange",
    "holm",
    "mcnemar",
    "p_text",
    "pearson",
    "resampled",
    "sign_flip",
]

FLIPS = 10_000
_EXACT = 12  # the signs of so many images are flipped in every way
_AT_A_TIME = 4_000_000  # numbers that a part of the flips may hold
_UNDERFLOW = 1e-300


def sign_flip(d: Tensor, seed: int = 0, flips: int = FLIPS) -> Tensor:
    """Two-sided p of differences under flips of their signs: the share of flips whose sum is as far from 0.

    Exact where few images differ; else of drawn flips, `(b + 1) / (m + 1)`, which are the same for all columns.

    Args:
        d: Differences of images, (n,), or (n, P) for P pairs of methods; 0 where an image does not count.
        seed: Of the flips.
        flips: m, how many are drawn.

    Returns:
        (), or (P,).
    """
    if d.dim() == 1:
        return sign_flip(d[:, None], seed, flips)[0]
    d = d.double().cpu()
    if not bool(d.isfinite().all()):
        raise ArgumentError(
            "Expected finite differences, but got NaN or infinity; give 0 where an image does not count."
        )
    # Sums in another order differ in their last digits, and equal ones must count as equal.
    least = d.sum(0).abs() - 1e-12 * d.abs().sum(0)
    found = torch.full((d.shape[1],), torch.nan, dtype=torch.float64)
    few = (d != 0).sum(0) <= _EXACT
    for column in few.nonzero()[:, 0].tolist():
        changing = d[:, column][d[:, column] != 0]
        bits = (torch.arange(2 ** len(changing))[:, None] >> torch.arange(len(changing))) & 1
        sums = (2 * bits.double() - 1) @ changing
        found[column] = (sums.abs() >= least[column]).double().mean()
    if not bool(few.all()):
        many, draw = d[:, ~few], torch.Generator().manual_seed(seed)
        part, reached = max(1, _AT_A_TIME // len(d)), torch.zeros(many.shape[1], dtype=torch.long)
        for start in range(0, flips, part):
            signs = torch.randint(0, 2, (min(part, flips - start), len(d)), generator=draw, dtype=torch.float64)
            reached += ((2 * signs - 1) @ many).abs().ge(least[~few]).sum(0)
        found[~few] = (reached + 1).double() / (flips + 1)
    return found


def exchange(
    first: Tensor, second: Tensor, summary: Summary, seed: int = 0, flips: int = FLIPS, clusters: Tensor | None = None
) -> Tensor:
    """Two-sided p of the difference of two summaries, under images changing sides, (O,); NaN where there is none.

    The sign-flip test for values of a data set that are no means over images, such as a ratio of sums: all of it is
    computed again each time. For a mean, both tests are the same.

    Args:
        first: Numbers per image of one method, (n, J), that all count.
        second: Of the other, on the same images.
        summary: From numbers (..., n, J) to outputs (..., O).
        seed: Of the changes.
        flips: How many are drawn, where they are too many to try all.
        clusters: Group of each image, (n,): groups change sides as a whole.
    """
    first, second = first.double().cpu(), second.double().cpu()
    group = torch.arange(len(first)) if clusters is None else torch.unique(clusters.cpu(), return_inverse=True)[1]
    count = int(group.max()) + 1
    parts = [summary(first), summary(second)]
    least = (parts[0] - parts[1]).abs() - 1e-12 * (parts[0].abs() + parts[1].abs())

    def reached(swapped: Tensor) -> Tensor:
        moved = swapped.bool()[:, group, None]
        change = summary(torch.where(moved, second, first)) - summary(torch.where(moved, first, second))
        return (~(change.abs() < least)).sum(0)  # what is not defined counts against a difference

    changing = torch.unique(group[(first != second).any(1)])
    if len(changing) <= _EXACT:
        ways = torch.zeros(2 ** len(changing), count)
        ways[:, changing] = ((torch.arange(len(ways))[:, None] >> torch.arange(len(changing))) & 1).float()
        return (reached(ways).double() / len(ways)).where(least.isfinite(), torch.nan)
    draw, part = torch.Generator().manual_seed(seed), max(1, _AT_A_TIME // first.numel())
    found = torch.zeros_like(least, dtype=torch.long)
    for start in range(0, flips, part):
        shape = (min(part, flips - start), count)
        found += reached(torch.randint(0, 2, shape, generator=draw, dtype=torch.float64))
    return ((found + 1).double() / (flips + 1)).where(least.isfinite(), torch.nan)


def holm(p: Sequence[float] | Tensor) -> list[float]:
    """P-values corrected for many comparisons, in the order given; NaN stays NaN and does not count."""
    values = np.asarray(p, dtype=float)
    counted = np.flatnonzero(~np.isnan(values))
    order = counted[np.argsort(values[counted], kind="stable")]
    found = np.full(len(values), np.nan)
    found[order] = np.minimum(1.0, np.maximum.accumulate(values[order] * np.arange(len(order), 0, -1)))
    return [float(value) for value in found]


def mcnemar(first: Tensor, second: Tensor) -> float:
    """Exact two-sided p of two methods' hits, 0 or 1 each, (n,), on the same images; NaN does not count."""
    hits = torch.stack([first.double(), second.double()]).cpu()
    hits = hits[:, hits.isfinite().all(0)]
    if bool(((hits != 0) & (hits != 1)).any()):
        raise ArgumentError("Expected hits that are 0 or 1 for McNemar's test; compare other values with `paired`.")
    alone, other = int((hits[0] > hits[1]).sum()), int((hits[0] < hits[1]).sum())
    return 1.0 if alone + other == 0 else float(stats.binomtest(alone, alone + other).pvalue)


def p_text(p: float | Tensor) -> str:
    """A p-value as it is printed: no test ever gives 0."""
    p = float(p)
    if p < _UNDERFLOW:
        return "< 1e-300"
    return f"{p:.3f}" if p >= 0.001 else f"{p:.1e}"
