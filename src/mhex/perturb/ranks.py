"""Ranks of units by importance, and how many of them are removed at each step: whole numbers only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from mhex.errors import ArgumentError

Tie = Literal["random", "stable"]
_SPREAD = 1_000_003  # a prime, so that seeds and numbers of samples do not meet
_GOLDEN, _FIRST, _SECOND = (n - 2**64 for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


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
    check_tie(tie)
    if scores.dim() != 2 or len(ids) != len(scores):
        raise ArgumentError(
            f"Expected scores (B, N) and a number for each sample, but got {tuple(scores.shape)} and {len(ids)}."
        )
    size, units = scores.shape
    if counted is not None:
        scores = scores.masked_fill(~counted, -torch.inf)
    values, order = scores.sort(dim=1, descending=True, stable=True)
    equal = (values[:, 1:] == values[:, :-1]) & (values[:, 1:] > -torch.inf)
    if tie == "random" and bool(equal.any()):
        # A random order first, and then a stable sort: no difference where no two scores are equal.
        shuffled = _keys(seed, ids, scores, counted).argsort(dim=1)
        order = shuffled.gather(1, scores.gather(1, shuffled).argsort(dim=1, descending=True, stable=True))
    places = torch.arange(units, device=scores.device).expand(size, units)
    return torch.empty_like(order).scatter_(1, order, places)


def check_tie(tie: str) -> None:
    """Refuse ways of ranking equal scores that are not known."""
    if tie not in get_args(Tie):
        raise ArgumentError(f"Expected tie {' or '.join(map(repr, get_args(Tie)))}, but got {tie!r}.")


def _keys(seed: int, ids: Sequence[int], scores: Tensor, counted: Tensor | None) -> Tensor:
    """A random whole number for each unit, (B, N), by seed, id and place alone: the same on every device.

    Mixed by the rounds of splitmix64. Of texts, places are counted among the units that count, whatever padding the
    batch has beside them.
    """
    place = torch.arange(scores.shape[1], device=scores.device).expand_as(scores)
    if counted is not None:
        place = counted.long().cumsum(1)
    start = [((seed * _SPREAD + int(i)) * _SPREAD) % 2**63 for i in ids]
    mixed = torch.tensor(start, device=scores.device)[:, None] + place * _GOLDEN
    for shift, factor in ((30, _FIRST), (27, _SECOND)):
        mixed = (mixed ^ _shifted(mixed, shift)) * factor
    return mixed ^ _shifted(mixed, 31)


def _shifted(number: Tensor, by: int) -> Tensor:
    """Bits moved to the right, zeros from the left: `>>` copies the sign."""
    return (number >> by) & ((1 << (64 - by)) - 1)


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
