"""Ranks of units by importance, and how many of them are removed at each step: whole numbers only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from mhex.errors import ArgumentError

Tie = Literal["random", "stable"]
_SPREAD = 1_000_003  # a prime, so that seeds and numbers of samples do not meet


def generator_for(seed: int, number: int, purpose: int = 0) -> torch.Generator:
    """Random numbers that depend on the user's seed and on one sample alone, however samples are batched.

    Args:
        seed: The user's.
        number: Of the sample.
        purpose: So that ties, boxes and noise of a sample are drawn apart from each other.
    """
    mixed = ((seed * _SPREAD + number) * _SPREAD + purpose) % 2**63
    return torch.Generator().manual_seed(mixed)


def ranks(
    scores: Tensor, ids: Sequence[int], seed: int = 0, tie: Tie = "random", counted: Tensor | None = None
) -> Tensor:
    """Place of each unit when sorted by score, most important first: (B, N), whole numbers from 0 on.

    Args:
        scores: (B, N), finite.
        ids: Number of each sample in its data set: ties are broken by (seed, id), so that a result does not depend on
            how samples are batched.
        seed: Of the ties.
        tie: `"random"`, or `"stable"`, in the order given, which takes whole rows of equal values first.
        counted: Bool (B, N), False at units that are never removed: they come last.
    """
    if tie not in ("random", "stable"):
        raise ArgumentError(f"Expected tie 'random' or 'stable', but got {tie!r}.")
    if scores.dim() != 2 or len(ids) != len(scores):
        raise ArgumentError(
            f"Expected scores (B, N) and a number for each sample, but got {tuple(scores.shape)} and {len(ids)}."
        )
    size, units = scores.shape
    if counted is not None:
        scores = scores.masked_fill(~counted, -torch.inf)
    values, order = scores.sort(dim=1, descending=True, stable=True)
    # Shuffling before a stable sort changes nothing where no two scores are equal.
    tied = ((values[:, 1:] == values[:, :-1]) & (values[:, 1:] > -torch.inf)).any(1) if tie == "random" else None
    if tied is not None and bool(tied.any()):
        rows = tied.nonzero()[:, 0]
        shuffled = torch.stack([_shuffled(units, seed, int(ids[n]), n, counted) for n in rows.tolist()])
        shuffled = shuffled.to(scores.device)
        sorted_again = scores[rows].gather(1, shuffled).argsort(dim=1, descending=True, stable=True)
        order[rows] = shuffled.gather(1, sorted_again)
    places = torch.arange(units, device=scores.device).expand(size, units)
    return torch.empty_like(order).scatter_(1, order, places)


def _shuffled(units: int, seed: int, number: int, row: int, counted: Tensor | None) -> Tensor:
    """Units of one sample in random order, (N,); those that count first, whatever padding the batch has beside them."""
    draw = generator_for(seed, number)
    if counted is None:
        return torch.randperm(units, generator=draw)
    places = torch.cat([counted[row].nonzero()[:, 0], (~counted[row]).nonzero()[:, 0]]).cpu()
    inside = int(counted[row].sum())
    return torch.cat([places[:inside][torch.randperm(inside, generator=draw)], places[inside:]])


def counts(units: Tensor, steps: int) -> Tensor:
    """How many of `units` are removed at each of the steps 0 to T, (..., T + 1).

    `floor(N k / T)` up to the middle, and the same counted from the end beyond it, so that the grid is symmetric:
    inserting is removing read backwards.

    Args:
        units: Whole numbers N, of any shape.
        steps: T.
    """
    k = torch.arange(steps + 1, device=units.device)
    n = units[..., None]
    return torch.where(2 * k <= steps, n * k // steps, n - n * (steps - k) // steps)
