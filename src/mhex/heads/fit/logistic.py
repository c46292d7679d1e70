"""Logistic regression on stored features, with the strength of the penalty chosen on held-out rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mhex.heads.fit.linear import Linear, Options, Outcome, loss_and_slope, mean_variance, row_weights

STRENGTHS = torch.logspace(1, -5, 13, dtype=torch.float64).tolist()  # strong to weak: each fit starts at the last
UNCHOSEN = 0.01  # where nothing could be held out
_ROUGH = {"maxiter": 200, "maxfun": 400, "maxcor": 20, "gtol": 1e-5, "ftol": 1e-7}  # to choose a strength
_CLOSE = {"maxiter": 2000, "maxfun": 4000, "maxcor": 20, "gtol": 1e-6, "ftol": 1e-12}


def fit_logistic(h: Tensor, y: Tensor, held: Tensor, options: Options) -> Outcome:
    """Fit one head.

    Args:
        h: Features, (N, C), float64.
        y: Labels, (N, n), float64.
        held: Which rows choose the strength, bool (N,); the final fit takes all.
        options: What to fit.
    """
    alive = h.amax(0) > h.amin(0)
    h = h[:, alive]
    rows = Rows(h[~held], y[~held], options)
    chosen = options.strength is None and bool(held.any())
    if chosen:
        strength, trial = _choose(rows, h[held], y[held], options)
    else:
        strength = UNCHOSEN if options.strength is None else options.strength
        trial = rows.solve(strength)
    if chosen:  # the same penalty on the sum of the losses, which now has more terms
        strength *= len(rows.y) / len(y)
    head = Rows(h, y, options).solve(strength, trial)
    return Outcome(head.spread(alive), strength, chosen, trial(h[held]), int(alive.sum()))


def _choose(rows: Rows, h: Tensor, y: Tensor, options: Options) -> tuple[float, Linear]:
    """The strength with the smallest held-out loss; the path ends when the loss has grown twice in a row."""
    weights = row_weights(y, options)
    best: tuple[float, float, Linear] | None = None
    head, grown = None, 0
    for strength in STRENGTHS:
        head = rows.solve(strength, head, _ROUGH)
        loss = float(loss_and_slope(head(h), y, weights, options)[0])
        if best is None or loss < best[0]:
            best, grown = (loss, strength, head), 0
        else:
            grown += 1
        if grown == 2:
            break
    assert best is not None
    return best[1], best[2]


@dataclass
class Rows:
    """Rows in coordinates in which the loss is round, so that few steps of L-BFGS suffice.

    Features are centred if there is an intercept and turned to their principal axes; axes without rows are left out,
    because the penalty makes their weights 0. Each axis is then scaled by the curvature that the penalised loss has
    at 0. The penalty is `strength * mean variance * |W|^2 / 2` in the coordinates of the features.

    Args:
        h: Features, (N, C), float64, every channel varying.
        y: Labels, (N, n), float64.
        options: What to fit.
    """

    h: Tensor
    y: Tensor
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
        """Fit the heads of the classes that occur; the others get weights 0 and, with an intercept, a low score.

        Args:
            strength: Of the penalty, above 0.
            start: Where to start.
            limits: When L-BFGS ends; by default when nothing moves any more.
        """
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
        found = minimize(loss, flat, jac=True, method="L-BFGS-B", options=limits or _CLOSE)
        point = torch.from_numpy(found.x).to(y).reshape(classes, axes + 1)
        weight, bias = self.h.new_zeros(len(self.seen), self.h.shape[1]), self.h.new_zeros(len(self.seen))
        weight[self.seen] = (point[:, :axes] * scale) @ self.axes.T
        bias[self.seen] = point[:, axes] - weight[self.seen] @ self.mean
        return Linear(weight, self._unseen(bias))

    def _unseen(self, bias: Tensor) -> Tensor:
        """Intercepts (n,) with those of classes that say nothing: as rare as a class can be that has no row."""
        if not self.options.intercept:
            return bias
        floor = bias.new_tensor(len(self.y) + 1.0).log()  # scores of classes that occur sum to 0: one is above -floor
        always = self.options.binary & (self.y.sum(0) > 0)
        return torch.where(self.seen, bias, torch.where(always, floor, -floor))
