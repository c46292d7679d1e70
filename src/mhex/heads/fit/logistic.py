"""Linear heads, their cross-entropy, and logistic regression with a penalty that held-out rows choose."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from mhex.errors import ArgumentError
from mhex.heads.explainer_block import wide_dtype

STRENGTHS = torch.logspace(1, -5, 13, dtype=torch.float64).tolist()  # strong to weak: each fit starts at the last
UNCHOSEN = 0.01  # where nothing could be held out
_ROUGH = {"maxiter": 200, "maxfun": 400, "maxcor": 20, "gtol": 1e-5, "ftol": 1e-7}  # to choose a strength
_CLOSE = {"maxiter": 2000, "maxfun": 4000, "maxcor": 20, "gtol": 1e-6, "ftol": 1e-12}


@dataclass(frozen=True)
class Options:
    """What the user asked for."""

    binary: bool  # whether every class is a yes-or-no question of its own
    intercept: bool = True  # whether the head has one
    balance: bool = True  # whether every class counts the same, however rare
    strength: float | None = None  # of the penalty, over the mean variance of the features; None to choose it


@dataclass(frozen=True)
class Linear:
    """Class scores `W h + b`, with W (n, C) and b (n,) in float64."""

    weight: Tensor
    bias: Tensor

    def __call__(self, h: Tensor) -> Tensor:
        """Class scores (B, n), float64, of features (B, C)."""
        return h.to(self.weight) @ self.weight.T + self.bias

    def spread(self, channels: Tensor) -> Linear:
        """On more channels: the weights go where bool `channels` (C,) is True, all others are exactly 0."""
        wide = self.weight.new_zeros(len(self.weight), len(channels))
        wide[:, channels] = self.weight
        return Linear(wide, self.bias)


@dataclass(frozen=True)
class LinearFit:
    """The fitted head of one block."""

    head: Linear  # fitted on all rows
    strength: float  # of its penalty
    chosen: bool  # whether held-out rows chose it
    trial: Tensor  # class scores (M, n) of held-out rows by a head that has not seen them
    alive: int  # number of channels that vary


def mean_variance(second: Tensor, mean: Tensor) -> Tensor:
    """Mean variance of channels with means (C,) and mean squares (C,): the unit in which penalties are given."""
    floor = 1e-14 * second.mean() + torch.finfo(torch.float64).tiny  # what a difference of sums can tell from 0
    return torch.maximum((second - mean * mean).mean(), floor)


def row_weights(y: Tensor, options: Options) -> Tensor:
    """Weights of a loss over rows, summing to 1: (N,) for one class per row, (N, n) for yes-or-no classes.

    With `balance`, every class that occurs in the labels `y` (N, n), or yes and no of each class, weighs the same.
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
    """Weighted cross-entropy, (), and its derivative by the scores, (N, n); `weights` are from `row_weights`."""
    if options.binary:
        loss = F.binary_cross_entropy_with_logits(scores, y, weights, reduction="sum")
        return loss, weights * (scores.sigmoid() - y)
    loss = weights @ (scores.logsumexp(1) - (scores * y).sum(1))
    return loss, weights[:, None] * (scores.softmax(1) - y)


def fitted_scale(scores: Tensor, y: Tensor, options: Options) -> float:
    """The factor that makes class scores the best log-odds: the least cross-entropy on rows not fitted to."""
    # Labels are smoothed by one part in M + 2, so that M rows without a mistake do not ask for infinite scores.
    from scipy.optimize import minimize_scalar

    rows, classes = y.shape
    weights = row_weights(y, options)
    blur = 1 / (rows + 2)
    smooth = (1 - blur) * y + blur * (0.5 if options.binary else 1 / classes)

    def loss(exponent: float) -> float:
        return float(loss_and_slope(scores * math.exp(exponent), smooth, weights, options)[0])

    result = minimize_scalar(loss, bounds=(math.log(1e-3), math.log(1e4)), method="bounded", options={"xatol": 1e-6})
    return math.exp(float(result.x))


def fit_logistic(h: Tensor, y: Tensor, held_out: Tensor, options: Options) -> LinearFit:
    """Fit one head to features `h` (N, C) and labels `y` (N, n), float64; rows `held_out` (N,) choose the strength."""
    alive = h.amax(0) > h.amin(0)
    h = h[:, alive]
    rows = LogisticProblem(h[~held_out], y[~held_out], options)
    searches = options.strength is None and bool(held_out.any())
    if searches:
        strength, trial = _choose(rows, h[held_out], y[held_out], options)
        strength *= len(rows.y) / len(y)  # the same penalty on the sum of the losses, which now has more terms
    else:
        strength = UNCHOSEN if options.strength is None else options.strength
        trial = rows.solve(strength)
    head = LogisticProblem(h, y, options).solve(strength, trial)
    return LinearFit(head.spread(alive), strength, searches, trial(h[held_out]), int(alive.sum()))


def _choose(rows: LogisticProblem, h: Tensor, y: Tensor, options: Options) -> tuple[float, Linear]:
    """The strength with the smallest held-out loss; the path ends when the loss has grown twice in a row."""
    weights = row_weights(y, options)
    heads: list[Linear] = []
    losses: list[float] = []
    for strength in STRENGTHS:
        heads.append(rows.solve(strength, heads[-1] if heads else None, _ROUGH))
        losses.append(float(loss_and_slope(heads[-1](h), y, weights, options)[0]))
        best = losses.index(min(losses))
        if len(losses) - best == 3:
            break
    return STRENGTHS[best], heads[best]


@dataclass
class LogisticProblem:
    """Rows in coordinates in which the loss is round, so that few steps of L-BFGS suffice.

    Features are centred if there is an intercept and turned to their principal axes; axes without rows are left out,
    because the penalty makes their weights 0. Each axis is then scaled by the curvature that the penalised loss has
    at 0. The penalty is `strength * mean variance * |W|^2 / 2` in the coordinates of the features.
    """

    h: Tensor  # features, (N, C), float64, every channel varying
    y: Tensor  # labels, (N, n), float64
    options: Options

    def __post_init__(self) -> None:
        h = self.h
        mean = h.mean(0)
        self.variance = mean_variance((h * h).mean(0), mean) if h.shape[1] else h.new_ones(())
        self.mean = mean if self.options.intercept else torch.zeros_like(mean)
        centred = h - self.mean
        values, axes = torch.linalg.eigh(centred.T @ centred / len(h))
        wide = values > 1e-13 * values.amax() if len(values) else values > 0
        self.values, self.axes = values[wide], axes[:, wide]
        self.turned = centred @ self.axes  # (N, R)
        self.weights = row_weights(self.y, self.options)
        total = self.y.sum(0)
        self.seen = (total > 0) & (total < len(self.y)) if self.options.binary else total > 0

    def solve(self, strength: float, start: Linear | None = None, limits: dict[str, float] | None = None) -> Linear:
        """Fit the heads of the classes that occur; the others get weights 0 and, with an intercept, a low score."""
        from scipy.optimize import minimize

        y = self.y[:, self.seen]
        weights = self.weights[:, self.seen] if self.options.binary else self.weights
        classes, axes = y.shape[1], len(self.values)
        penalty = strength * self.variance
        curvature = 0.25 if self.options.binary else (1 - 1 / classes) / classes
        scale = (curvature * self.values + penalty).rsqrt()  # (R,)

        def loss(flat: Any) -> tuple[float, Any]:
            point = torch.from_numpy(flat).to(y).reshape(classes, axes + 1)
            weight, bias = point[:, :axes] * scale, point[:, axes]
            value, slope = loss_and_slope(self.turned @ weight.T + bias, y, weights, self.options)
            value = value + penalty / 2 * weight.square().sum()
            by_weight = (slope.T @ self.turned + penalty * weight) * scale
            by_bias = slope.sum(0) * float(self.options.intercept)  # stays 0 without one
            return float(value), torch.cat([by_weight, by_bias[:, None]], 1).flatten().cpu().numpy()

        first = y.new_zeros(classes, axes + 1)
        if start is not None:
            first[:, :axes] = start.weight[self.seen] @ self.axes / scale
            first[:, axes] = (start.bias + start.weight @ self.mean)[self.seen] if self.options.intercept else 0
        flat = first.flatten().cpu().numpy()
        result = minimize(loss, flat, jac=True, method="L-BFGS-B", options=limits or _CLOSE)
        point = torch.from_numpy(result.x).to(y).reshape(classes, axes + 1)
        weight, bias = self.h.new_zeros(len(self.seen), self.h.shape[1]), self.h.new_zeros(len(self.seen))
        weight[self.seen] = (point[:, :axes] * scale) @ self.axes.T
        bias[self.seen] = point[:, axes] - weight[self.seen] @ self.mean
        if self.options.intercept:  # a class without rows is as rare as it can be: scores of the others sum to 0
            floor = bias.new_tensor(len(self.y) + 1.0).log()
            always = self.options.binary & (self.y.sum(0) > 0)
            bias = torch.where(self.seen, bias, torch.where(always, floor, -floor))
        return Linear(weight, bias)


class LogisticGatherer:
    """Gathers all pooled features, float32, in the memory of the CPU, of blocks whose widths `channels` gives by name.

    `device` is where to fit, if it has float64; `expected` is the number of rows, if it is known.
    """

    def __init__(self, channels: Mapping[str, int], device: torch.device, memory_gb: float, expected: int | None):
        self.device, self.memory_gb = wide_device(device), memory_gb
        self.row_bytes = 4 * sum(channels.values())
        self.features: dict[str, list[Tensor]] = {name: [] for name in channels}
        self.labels: list[Tensor] = []
        self.held_out: list[Tensor] = []
        self._check(expected or 0)

    def add(self, features: Mapping[str, Tensor], y: Tensor, held_out: Tensor) -> None:
        """Store the rows of a batch."""
        self._check(sum(map(len, self.held_out)) + len(held_out))
        for name, parts in self.features.items():
            parts.append(features[name].to("cpu", wide_dtype(features[name]), copy=True))
        self.labels.append(y.cpu())
        self.held_out.append(held_out.cpu())

    def fit(self, name: str, options: Options) -> LinearFit:
        """Logistic regression of the rows of a block."""
        h = torch.cat(self.features.pop(name)).to(self.device).double()
        return fit_logistic(h, torch.cat(self.labels).to(h), torch.cat(self.held_out).to(self.device), options)

    def held_labels(self) -> Tensor:
        """Labels (M, n) of the rows of `LinearFit.trial`."""
        return torch.cat(self.labels)[torch.cat(self.held_out)]

    def _check(self, rows: int) -> None:
        if (needed := rows * self.row_bytes / 1e9) > self.memory_gb:
            words = f"{rows} samples take {needed:.1f} GB, more than memory_gb={self.memory_gb:g}"
            raise ArgumentError(f"The pooled features of {words}: use method='ridge', or allow more.")


def wide_device(device: torch.device) -> torch.device:
    """The device, or the CPU where it has no float64."""
    return torch.device("cpu") if device.type == "mps" else device
