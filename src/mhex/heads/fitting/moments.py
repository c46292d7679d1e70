"""Sums over rows that least squares needs: constant memory, whatever the number of rows."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor


@dataclass
class Moments:
    """Sums over rows `h` (C,) with labels `y` (n,), in float64.

    Attributes:
        count: Number of rows, ().
        second: Sum of `h h^T`, (C, C).
        cross: Sum of `y h^T`, (n, C).
        total: Sum of `h`, (C,).
        labels: Sum of `y`, (n,).
        lowest: Smallest value of each channel, (C,).
        highest: Largest value of each channel, (C,).
    """

    count: Tensor
    second: Tensor
    cross: Tensor
    total: Tensor
    labels: Tensor
    lowest: Tensor
    highest: Tensor

    @classmethod
    def empty(cls, channels: int, num_classes: int, device: torch.device) -> Moments:
        """Of no rows."""

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64, device=device)

        infinite = torch.full((channels,), torch.inf, dtype=torch.float64, device=device)
        return cls(
            zeros(),
            zeros(channels, channels),
            zeros(num_classes, channels),
            zeros(channels),
            zeros(num_classes),
            infinite,
            -infinite,
        )

    def add(self, h: Tensor, y: Tensor) -> None:
        """Take in rows.

        Args:
            h: Features, (B, C), float64.
            y: Labels, 0 to 1, (B, n), float64.
        """
        if not len(h):
            return
        self.count += len(h)
        self.second.addmm_(h.T, h)
        self.cross.addmm_(y.T, h)
        self.total += h.sum(0)
        self.labels += y.sum(0)
        self.lowest = torch.minimum(self.lowest, h.amin(0))
        self.highest = torch.maximum(self.highest, h.amax(0))

    def __add__(self, other: Moments) -> Moments:
        """Of the rows of both."""
        sums = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)[:5]}
        return Moments(
            **sums,
            lowest=torch.minimum(self.lowest, other.lowest),
            highest=torch.maximum(self.highest, other.highest),
        )

    @property
    def alive(self) -> Tensor:
        """Channels that vary over the rows, bool (C,). Told by their values: a difference of sums would not be 0."""
        return self.highest > self.lowest

    def of(self, channels: Tensor) -> Moments:
        """Of some channels alone, given as bool (C,)."""
        return Moments(
            self.count,
            self.second[channels][:, channels],
            self.cross[:, channels],
            self.total[channels],
            self.labels,
            self.lowest[channels],
            self.highest[channels],
        )


@dataclass(frozen=True)
class Problem:
    """Averages over rows `h` and targets `t`: all that a least-squares fit and its error depend on.

    Attributes:
        gram: Mean of `h h^T`, (C, C).
        cross: Mean of `t h^T`, (n, C).
        mean: Mean of `h`, (C,).
        target: Mean of `t`, (n,).
        square: Mean of `|t|^2`, ().
    """

    gram: Tensor
    cross: Tensor
    mean: Tensor
    target: Tensor
    square: Tensor

    @classmethod
    def one_of_many(cls, moments: Moments, balance: bool) -> Problem:
        """One class per row; the target is 1 at that class and 0 elsewhere.

        With `balance` every class that occurs counts the same: its mean gets the weight 1 over their number in place
        of its frequency, around which rows scatter with the covariance that all classes share. That needs no scatter
        per class, which would not fit in memory, and a class of three rows is not trusted with a covariance.
        """
        seen = moments.labels > 0
        share = moments.labels / moments.count
        weight = seen.to(share) / seen.sum() if balance else share
        means = moments.cross / moments.labels.clamp_min(1e-300)[:, None]  # no rows: 0 / tiny = 0
        gram = moments.second / moments.count
        if balance:
            gram = gram + (means.T * (weight - share)) @ means
        return cls(gram, weight[:, None] * means, weight @ means, weight, weight.sum())

    @classmethod
    def yes_or_no(cls, moments: Moments) -> Problem:
        """A question per class; the target is 1 for yes and -1 for no."""
        target = 2 * moments.labels / moments.count - 1
        return cls(
            moments.second / moments.count,
            (2 * moments.cross - moments.total) / moments.count,
            moments.total / moments.count,
            target,
            torch.full_like(moments.count, target.numel()),
        )

    def about(self, mean: Tensor, target: Tensor) -> Problem:
        """The same rows with `mean` (C,) taken off the features and `target` (n,) off the targets."""
        outer = torch.outer(self.mean, mean)
        return Problem(
            self.gram - outer - outer.T + torch.outer(mean, mean),
            self.cross - torch.outer(self.target, mean) - torch.outer(target, self.mean) + torch.outer(target, mean),
            self.mean - mean,
            self.target - target,
            self.square - 2 * self.target @ target + target @ target,
        )
