"""How good class scores are, and the scale on which they are best read as log-odds."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


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


def row_weights(y: Tensor, options: Options) -> Tensor:
    """Weights of a loss over rows, summing to 1: (N,) for one class per row, (N, n) for yes-or-no classes.

    Args:
        y: Labels from 0 to 1, (N, n).
        options: With `balance`, every class that occurs (or yes and no of each class) has the same weight.
    """
    if not options.balance:
        return torch.full_like(y if options.binary else y[:, 0], 1 / len(y))
    yes = y.sum(0)
    if not options.binary:
        return y @ torch.where(yes > 0, 1 / yes, 0) / (yes > 0).sum()
    no = len(y) - yes
    balanced = y / (2 * yes) + (1 - y) / (2 * no)
    return torch.where((yes > 0) & (no > 0), balanced, 1 / len(y))


def loss_and_slope(scores: Tensor, y: Tensor, weights: Tensor, options: Options) -> tuple[Tensor, Tensor]:
    """Weighted cross-entropy, (), and its derivative with respect to the scores, (N, n).

    Args:
        scores: Class scores, (N, n).
        y: Labels, (N, n); of one class per row they sum to 1.
        weights: From `row_weights`.
        options: Which cross-entropy.
    """
    if options.binary:
        loss = F.binary_cross_entropy_with_logits(scores, y, weights, reduction="sum")
        return loss, weights * (scores.sigmoid() - y)
    loss = weights @ (scores.logsumexp(1) - (scores * y).sum(1))
    return loss, weights[:, None] * (scores.softmax(1) - y)


def fitted_scale(scores: Tensor, y: Tensor, options: Options) -> float:
    """The factor that makes class scores the best log-odds: the least cross-entropy on rows not fitted to.

    Labels are smoothed by one part in M + 2, so that M rows without a mistake do not ask for infinite scores.

    Args:
        scores: (M, n).
        y: Labels, (M, n).
        options: Which cross-entropy, and whether every class counts the same.
    """
    from scipy.optimize import minimize_scalar

    rows, classes = y.shape
    weights = row_weights(y, options)
    blur = 1 / (rows + 2)
    smooth = (1 - blur) * y + blur * (0.5 if options.binary else 1 / classes)

    def loss(exponent: float) -> float:
        return float(loss_and_slope(scores * math.exp(exponent), smooth, weights, options)[0])

    found = minimize_scalar(loss, bounds=(math.log(1e-3), math.log(1e4)), method="bounded", options={"xatol": 1e-6})
    return math.exp(float(found.x))


def accuracy(scores: Tensor, y: Tensor, options: Options) -> float:
    """Share of right predictions; of yes-or-no classes, share of right answers. NaN without rows."""
    return float(right_answers(scores, y, options).double().mean())


def balanced_accuracy(scores: Tensor, y: Tensor, options: Options) -> float:
    """Mean over the classes that occur of the share of their rows that is found; of yes-or-no classes, over both."""
    right = right_answers(scores, y, options).double()
    if options.binary:
        truth = (y > 0.5).double()
        found, refused = (right * truth).sum(0) / truth.sum(0), (right * (1 - truth)).sum(0) / (1 - truth).sum(0)
        return float(torch.stack([found, refused]).nanmean())
    truth = F.one_hot(y.argmax(1), y.shape[1]).double()
    return float(((truth.T @ right) / truth.sum(0)).nanmean())


def mean_average_precision(scores: Tensor, y: Tensor) -> float:
    """Mean over the classes that occur of the average precision of their scores. NaN if none occurs."""
    from torchmetrics.functional.classification import binary_average_precision

    truth = (y > 0.5).long()
    seen = truth.sum(0).nonzero()[:, 0].tolist()
    return float(torch.tensor([float(binary_average_precision(scores[:, k], truth[:, k])) for k in seen]).mean())


def right_answers(scores: Tensor, y: Tensor, options: Options) -> Tensor:
    """Which predictions are right: bool (N,), or (N, n) of yes-or-no classes.

    Args:
        scores: Class scores, (N, n).
        y: Labels from 0 to 1, (N, n).
        options: Which kind of classes.
    """
    if options.binary:
        return (scores > 0) == (y > 0.5)
    return scores.argmax(1) == y.argmax(1)
