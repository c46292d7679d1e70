"""A linear head while it is being fitted, and what a fit hands over."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Options:
    """What the user asked for.

    Attributes:
        binary: Whether every class is a yes-or-no question of its own.
        intercept: Whether the head has one.
        balance: Whether every class counts the same, however rare.
        strength: Of the penalty, in units of the mean variance of the features; None to choose on held-out rows.
    """

    binary: bool
    intercept: bool = True
    balance: bool = True
    strength: float | None = None


@dataclass(frozen=True)
class Linear:
    """Class scores `W h + b`.

    Attributes:
        weight: W, (n, C), float64.
        bias: b, (n,), float64.
    """

    weight: Tensor
    bias: Tensor

    def __call__(self, h: Tensor) -> Tensor:
        """Class scores (B, n), float64, of features (B, C)."""
        return h.to(self.weight) @ self.weight.T + self.bias

    def times(self, scale: float) -> Linear:
        """With all class scores multiplied."""
        return Linear(self.weight * scale, self.bias * scale)

    def spread(self, channels: Tensor) -> Linear:
        """On more channels: the weights go where bool `channels` (C,) is True, all others are exactly 0."""
        wide = self.weight.new_zeros(len(self.weight), len(channels))
        wide[:, channels] = self.weight
        return Linear(wide, self.bias)


@dataclass(frozen=True)
class Outcome:
    """The fitted head of one block.

    Attributes:
        head: Fitted on all rows.
        strength: Of its penalty.
        chosen: Whether held-out rows chose it.
        trial: Class scores (M, n) of held-out rows by a head that has not seen them.
        alive: Number of channels that vary.
    """

    head: Linear
    strength: float
    chosen: bool
    trial: Tensor
    alive: int


def mean_variance(second: Tensor, mean: Tensor) -> Tensor:
    """Mean over channels of their variance, (): the unit of a penalty, so that its strength has none.

    Args:
        second: Mean of the squares of each channel, (C,).
        mean: Mean of each channel, (C,).
    """
    floor = 1e-14 * second.mean() + torch.finfo(torch.float64).tiny  # what a difference of sums can tell from 0
    return torch.maximum((second - mean * mean).mean(), floor)


def factors(weight: Tensor) -> tuple[Tensor, Tensor, int]:
    """`W2` (n, C), `W1` (C, C) with `W2 W1` = weight (n, C), equally large, and their rank.

    The rank is at most min(n, C): the first rows of `W1` and the first columns of `W2` hold everything, the others
    are 0.
    """
    u, s, vh = torch.linalg.svd(weight, full_matrices=False)
    rank = int((s > 1e-12 * s.amax()).sum())  # the rest is rounding: scores of classes that sum to 0, say
    root = s[:rank].sqrt()
    w2, w1 = torch.zeros_like(weight), weight.new_zeros(weight.shape[1], weight.shape[1])
    w2[:, :rank] = u[:, :rank] * root
    w1[:rank] = root[:, None] * vh[:rank]
    return w2, w1, rank
