"""Least squares on streamed moments, with the strength of the penalty chosen on held-out rows."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from mhex.heads.fit.linear import Linear, Options, Outcome, fitted_scale, mean_variance


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


STRENGTHS = torch.logspace(-6, 2, 17, dtype=torch.float64).tolist()
UNCHOSEN = 0.1  # where nothing could be held out


def fit_ridge(train: Moments, held: Moments, h: Tensor, y: Tensor, options: Options) -> Outcome:
    """Fit one head.

    Args:
        train: Of the rows to fit on while the strength is chosen.
        held: Of the rows to choose it on; the final fit takes both.
        h: Features of held-out rows, (M, C), on which the scale of the scores is chosen; may be a part of them.
        y: Their labels, (M, n).
        options: What to fit.
    """
    both = train + held
    alive = both.alive
    train, held, both = train.of(alive), held.of(alive), both.of(alive)
    strength, chosen = options.strength, False
    if not int(alive.sum()):
        strength = 0.0 if strength is None else strength
    elif strength is None:
        strength = UNCHOSEN
        if chosen := bool(held.count > 0):
            errors = held_out_errors(train, held, STRENGTHS, options)
            strength = STRENGTHS[int(errors.argmin())]
    trial = solve(train, strength, options)
    scores = trial(h.to(train.second.device)[:, alive])
    scale = fitted_scale(scores, y.to(scores), options) if len(h) else 1.0
    if chosen:  # the same penalty on the sum of squared errors, which now has more terms
        strength *= float(train.count / both.count)
    head = solve(both, strength, options).times(scale).spread(alive)
    return Outcome(head, strength, chosen, scores * scale, int(alive.sum()))


def solve(moments: Moments, strength: float, options: Options) -> Linear:
    """Least squares with the penalty `strength * mean variance * |W|^2` on the mean squared error.

    Args:
        moments: Of the rows.
        strength: Above 0.
        options: Which targets, and whether there is an intercept.
    """
    problem, mean, target = _centred(moments, options)
    if not problem.mean.numel():
        return Linear(problem.cross, target)
    root = torch.linalg.cholesky(_ridged(problem.gram, _penalty(moments, strength)))
    weight = torch.cholesky_solve(problem.cross.T, root).T
    if options.binary and options.balance:
        return _rebalanced(moments, weight, root, options)
    return Linear(weight, target - weight @ mean)


def held_out_errors(train: Moments, held: Moments, strengths: list[float], options: Options) -> Tensor:
    """Mean squared error on held-out rows for each strength, (S,), from moments alone.

    One eigendecomposition `gram = V diag(s) V^T` of the training rows serves all strengths: with `A = cross V` the
    weights are `A diag(d) V^T`, `d = 1 / (s + penalty)`, and the error is a quadratic form in `d`. Yes-or-no targets
    are taken as they are, because balancing them changes each head's scale and threshold, not its direction.
    """
    problem, mean, target = _centred(train, options)
    other = _problem(held, options).about(mean, target)
    values, vectors = torch.linalg.eigh(problem.gram)
    a = problem.cross @ vectors
    quadratic = (a.T @ a) * (vectors.T @ other.gram @ vectors)
    linear = (a * (other.cross @ vectors)).sum(0)
    penalties = [_penalty(train, strength) for strength in strengths]
    inverses = 1 / (values.clamp_min(0) + torch.stack(penalties)[:, None])  # (S, C)
    errors: Tensor = ((inverses @ quadratic) * inverses).sum(1) - 2 * inverses @ linear + other.square
    return errors


def _problem(moments: Moments, options: Options) -> Problem:
    return Problem.yes_or_no(moments) if options.binary else Problem.one_of_many(moments, options.balance)


def _centred(moments: Moments, options: Options) -> tuple[Problem, Tensor, Tensor]:
    """The problem about the means of features and targets if there is an intercept, and what was taken off."""
    problem = _problem(moments, options)
    mean, target = problem.mean, problem.target
    if not options.intercept:
        mean, target = torch.zeros_like(mean), torch.zeros_like(target)
    return problem.about(mean, target), mean, target


def _penalty(moments: Moments, strength: float) -> Tensor:
    squares, mean = moments.second.diagonal() / moments.count, moments.total / moments.count
    return strength * mean_variance(squares, mean)


def _ridged(gram: Tensor, penalty: Tensor) -> Tensor:
    gram = (gram + gram.T) / 2
    gram.diagonal().add_(penalty)
    return gram


def _rebalanced(moments: Moments, weight: Tensor, root: Tensor, options: Options) -> Linear:
    """Yes-or-no heads as if yes and no were equally frequent.

    Rows scatter around the means of yes and no with the same covariance, so the gram matrix of each class differs
    from the common one by a term of rank one (two without intercept), which the Woodbury identity takes in.

    Args:
        moments: Of the rows.
        weight: Heads at the frequencies found, (n, C); left as they are where only yes or only no was seen.
        root: Cholesky factor of the penalised common gram matrix, (C, C).
        options: Whether there is an intercept.
    """
    yes, no = moments.labels, moments.count - moments.labels
    both = (yes > 0) & (no > 0)
    share = (yes / moments.count)[:, None]  # (n, 1)
    plus = moments.cross / yes.clamp_min(1e-300)[:, None]
    minus = (moments.total - moments.cross) / no.clamp_min(1e-300)[:, None]
    gap = plus - minus
    if options.intercept:
        parts, factor = gap[:, None], 0.25 - share * (1 - share)  # (n, 1, C), (n, 1)
    else:
        parts, factor = torch.stack([plus, minus], 1), torch.cat([0.5 - share, share - 0.5], 1)
    solved = torch.cholesky_solve(parts.flatten(0, 1).T, root).T.reshape(parts.shape)  # (n, k, C)
    wanted = torch.cholesky_solve(gap.T / 2, root).T  # (n, C)
    small = torch.eye(parts.shape[1]).to(weight) + factor[:, :, None] * (parts @ solved.mT)
    right = factor * (parts @ wanted[:, :, None])[:, :, 0]
    update = torch.linalg.solve(small, right[:, :, None])  # (n, k, 1)
    balanced = wanted - (solved * update).sum(1)
    weight = torch.where(both[:, None], balanced, torch.zeros_like(weight))
    if not options.intercept:
        return Linear(weight, torch.zeros_like(yes))
    middle = -(weight * (plus + minus)).sum(1) / 2
    return Linear(weight, torch.where(both, middle, torch.where(yes > 0, 1.0, -1.0).to(middle)))
