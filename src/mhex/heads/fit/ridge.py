"""Least squares on streamed moments, with the strength of the penalty chosen on held-out rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from mhex.heads.fit.logistic import Linear, LinearFit, Options, fitted_scale, mean_variance, wide_device

STRENGTHS = torch.logspace(-6, 2, 17, dtype=torch.float64).tolist()
UNCHOSEN = 0.1  # where nothing could be held out


@dataclass
class Moments:
    """Sums over rows `h` (C,) with labels `y` (n,), in float64."""

    count: Tensor  # number of rows, ()
    labels: Tensor  # sum of `y`, (n,)
    second: Tensor  # sum of `h h^T`, (C, C)
    cross: Tensor  # sum of `y h^T`, (n, C)
    total: Tensor  # sum of `h`, (C,)
    lowest: Tensor  # smallest value of each channel, (C,)
    highest: Tensor  # largest value of each channel, (C,)

    @classmethod
    def empty(cls, channels: int, num_classes: int, device: torch.device) -> Moments:
        """Moments of no rows."""
        shapes: list[tuple[int, ...]] = [(), (num_classes,), (channels, channels), (num_classes, channels), (channels,)]
        zeros = [torch.zeros(shape, dtype=torch.float64, device=device) for shape in shapes]
        infinite = torch.full_like(zeros[-1], torch.inf)
        return cls(*[*zeros, infinite, -infinite])

    def add(self, h: Tensor, y: Tensor) -> None:
        """Take in features (B, C) and labels from 0 to 1, (B, n), both float64."""
        if not len(h):
            return
        self.count += len(h)
        self.second.addmm_(h.T, h)
        self.cross.addmm_(y.T, h)
        self.total += h.sum(0)
        self.labels += y.sum(0)
        self.lowest = torch.minimum(self.lowest, h.amin(0))
        self.highest = torch.maximum(self.highest, h.amax(0))

    def __add__(self, moments: Moments) -> Moments:
        """Moments of the rows of both."""
        sums = [getattr(self, field.name) + getattr(moments, field.name) for field in fields(self)[:5]]
        ends = [torch.minimum(self.lowest, moments.lowest), torch.maximum(self.highest, moments.highest)]
        return Moments(*sums, *ends)

    @property
    def alive(self) -> Tensor:
        """Channels that vary over the rows, bool (C,). Told by their values: a difference of sums would not be 0."""
        return self.highest > self.lowest

    def of(self, channels: Tensor) -> Moments:
        """Moments of some channels alone, given as bool (C,)."""
        second, cross = self.second[channels][:, channels], self.cross[:, channels]
        vectors = (vector[channels] for vector in (self.total, self.lowest, self.highest))
        return Moments(self.count, self.labels, second, cross, *vectors)


@dataclass(frozen=True)
class LeastSquares:
    """Averages over rows `h` and targets `t`: all that a least-squares fit and its error depend on."""

    gram: Tensor  # mean of `h h^T`, (C, C)
    cross: Tensor  # mean of `t h^T`, (n, C)
    mean: Tensor  # mean of `h`, (C,)
    target: Tensor  # mean of `t`, (n,)
    square: Tensor  # mean of `|t|^2`, ()

    @classmethod
    def of(cls, moments: Moments, options: Options) -> LeastSquares:
        """The target of yes-or-no classes is 1 or -1; that of one class per row is 1 at the class and 0 elsewhere.

        With `balance` every class that occurs counts the same: its mean gets the weight 1 over their number in place
        of its frequency, around which rows scatter with the covariance that all classes share. That needs no scatter
        per class, which would not fit in memory, and a class of three rows is not trusted with a covariance.
        """
        gram, share = moments.second / moments.count, moments.labels / moments.count
        if options.binary:
            cross, mean = (2 * moments.cross - moments.total) / moments.count, moments.total / moments.count
            return cls(gram, cross, mean, 2 * share - 1, torch.full_like(moments.count, share.numel()))
        present = moments.labels > 0
        weight = present.to(share) / present.sum() if options.balance else share
        means = moments.cross / moments.labels.clamp_min(1e-300)[:, None]  # no rows: 0 / tiny = 0
        if options.balance:
            gram = gram + (means.T * (weight - share)) @ means
        return cls(gram, weight[:, None] * means, weight @ means, weight, weight.sum())

    def about(self, mean: Tensor, target: Tensor) -> LeastSquares:
        """The same rows with `mean` (C,) taken off the features and `target` (n,) off the targets."""
        outer = torch.outer(self.mean, mean)
        return LeastSquares(
            self.gram - outer - outer.T + torch.outer(mean, mean),
            self.cross - torch.outer(self.target, mean) - torch.outer(target, self.mean) + torch.outer(target, mean),
            self.mean - mean,
            self.target - target,
            self.square - 2 * self.target @ target + target @ target,
        )


def fit_ridge(train: Moments, held_out: Moments, h: Tensor, y: Tensor, options: Options) -> LinearFit:
    """Fit one head to the rows of `train` and choose its strength on those of `held_out`; the final fit takes both.

    The scale of the scores is chosen on features `h` (M, C) and labels `y` (M, n) of all or some held-out rows.
    """
    alive = (train + held_out).alive
    train, held_out = train.of(alive), held_out.of(alive)
    total = train + held_out
    searches = options.strength is None and bool(alive.any()) and bool(held_out.count > 0)
    if searches:
        strength = STRENGTHS[int(held_out_errors(train, held_out, STRENGTHS, options).argmin())]
    else:
        usual = UNCHOSEN if bool(alive.any()) else 0.0
        strength = usual if options.strength is None else options.strength
    trial = solve(train, strength, options)
    scores = trial(h.to(train.second.device)[:, alive])
    scale = fitted_scale(scores, y.to(scores), options) if len(h) else 1.0
    if searches:  # the same penalty on the sum of squared errors, which now has more terms
        strength *= float(train.count / total.count)
    head = solve(total, strength, options)
    head = Linear(head.weight * scale, head.bias * scale).spread(alive)
    return LinearFit(head, strength, searches, scores * scale, int(alive.sum()))


def solve(moments: Moments, strength: float, options: Options) -> Linear:
    """Least squares with the penalty `strength * mean variance * |W|^2` on the mean squared error; strength > 0."""
    problem, mean, target = _centred(moments, options)
    if not problem.mean.numel():
        return Linear(problem.cross, target)
    gram = (problem.gram + problem.gram.T) / 2
    gram.diagonal().add_(_penalty(moments, strength))
    root = torch.linalg.cholesky(gram)
    weight = torch.cholesky_solve(problem.cross.T, root).T
    if options.binary and options.balance:
        return _rebalanced(moments, weight, root, options)
    return Linear(weight, target - weight @ mean)


def held_out_errors(train: Moments, held_out: Moments, strengths: list[float], options: Options) -> Tensor:
    """Mean squared error on held-out rows for each strength, (S,), from moments alone.

    One eigendecomposition `gram = V diag(s) V^T` of the training rows serves all strengths: with `A = cross V` the
    weights are `A diag(d) V^T`, `d = 1 / (s + penalty)`, and the error is a quadratic form in `d`. Yes-or-no targets
    are taken as they are, because balancing them changes each head's scale and threshold, not its direction.
    """
    problem, mean, target = _centred(train, options)
    test = LeastSquares.of(held_out, options).about(mean, target)
    values, vectors = torch.linalg.eigh(problem.gram)
    a = problem.cross @ vectors
    quadratic = (a.T @ a) * (vectors.T @ test.gram @ vectors)
    linear = (a * (test.cross @ vectors)).sum(0)
    penalties = [_penalty(train, strength) for strength in strengths]
    inverses = 1 / (values.clamp_min(0) + torch.stack(penalties)[:, None])  # (S, C)
    errors: Tensor = ((inverses @ quadratic) * inverses).sum(1) - 2 * inverses @ linear + test.square
    return errors


def _centred(moments: Moments, options: Options) -> tuple[LeastSquares, Tensor, Tensor]:
    """The problem about the means of features and targets if there is an intercept, and what was taken off."""
    problem = LeastSquares.of(moments, options)
    mean, target = problem.mean, problem.target
    if not options.intercept:
        mean, target = torch.zeros_like(mean), torch.zeros_like(target)
    return problem.about(mean, target), mean, target


def _penalty(moments: Moments, strength: float) -> Tensor:
    squares, mean = moments.second.diagonal() / moments.count, moments.total / moments.count
    return strength * mean_variance(squares, mean)


def _rebalanced(moments: Moments, weight: Tensor, root: Tensor, options: Options) -> Linear:
    """Yes-or-no heads as if yes and no were equally frequent."""
    # Rows scatter around the means of yes and no with the same covariance, so the gram matrix of each class differs
    # from the common one by a term of rank one (two without intercept), which the Woodbury identity takes in. `root`
    # (C, C) is the Cholesky factor of the penalised common gram matrix.
    yes, no = moments.labels, moments.count - moments.labels
    mixed = (yes > 0) & (no > 0)
    share = (yes / moments.count)[:, None]  # (n, 1)
    plus = moments.cross / yes.clamp_min(1e-300)[:, None]
    minus = (moments.total - moments.cross) / no.clamp_min(1e-300)[:, None]
    gap = plus - minus
    if options.intercept:
        parts, factor = gap[:, None], 0.25 - share * (1 - share)  # (n, 1, C), (n, 1)
    else:
        parts, factor = torch.stack([plus, minus], 1), torch.cat([0.5 - share, share - 0.5], 1)
    solved = torch.cholesky_solve(parts.flatten(0, 1).T, root).T.reshape(parts.shape)  # (n, k, C)
    optimum = torch.cholesky_solve(gap.T / 2, root).T  # (n, C)
    small = torch.eye(parts.shape[1]).to(weight) + factor[:, :, None] * (parts @ solved.mT)
    right = factor * (parts @ optimum[:, :, None])[:, :, 0]
    update = torch.linalg.solve(small, right[:, :, None])  # (n, k, 1)
    balanced = optimum - (solved * update).sum(1)
    weight = torch.where(mixed[:, None], balanced, torch.zeros_like(weight))
    if not options.intercept:
        return Linear(weight, torch.zeros_like(yes))
    middle = -(weight * (plus + minus)).sum(1) / 2
    return Linear(weight, torch.where(mixed, middle, torch.where(yes > 0, 1.0, -1.0).to(middle)))


class RowSample:
    """Some of the rows of a stream, evenly spaced over all of it: a sorted stream must not show its first class only.

    Of a long stream, between `limit` and twice as many rows are kept; of a short one, all.
    """

    def __init__(self, limit: int = 2048) -> None:
        self.limit, self.stride, self.count = limit, 1, 0
        self.parts: list[list[Tensor]] = []

    def add(self, *columns: Tensor) -> None:
        """Take in rows, given as tensors (B, ...) that belong together."""
        places = torch.arange(self.count, self.count + len(columns[0]))
        self.count += len(places)
        sample = places % self.stride == 0
        self.parts.append([column[sample.to(column.device)].cpu() for column in columns])
        if sum(len(part[0]) for part in self.parts) > 2 * self.limit:
            self.parts = [[column[::2] for column in self.columns()]]
            self.stride *= 2

    def columns(self) -> list[Tensor]:
        """The rows kept, one tensor for each of `add`."""
        if len(self.parts) > 1:
            self.parts = [[torch.cat(column) for column in zip(*self.parts, strict=True)]]
        return self.parts[0]


class RidgeGatherer:
    """Gathers moments of training and held-out rows, in constant memory; `channels` are widths of blocks by name."""

    def __init__(self, channels: Mapping[str, int], num_classes: int, device: torch.device) -> None:
        self.device = wide_device(device)
        self.moments = {
            name: [Moments.empty(width, num_classes, self.device) for _ in range(2)] for name, width in channels.items()
        }
        self.sample = RowSample()
        self.places = {name: number for number, name in enumerate(channels)}

    def add(self, features: Mapping[str, Tensor], y: Tensor, held_out: Tensor) -> None:
        """Add a batch to the sums, and keep some held-out rows, on which scores are judged."""
        y, held_out = y.to(self.device), held_out.to(self.device)
        for name, moments in self.moments.items():
            h = features[name].to(self.device).double()
            for part, rows in zip(moments, (~held_out, held_out), strict=True):
                part.add(h[rows], y[rows])
        self.sample.add(*(features[name][held_out.to(features[name].device)] for name in self.places), y[held_out])

    def fit(self, name: str, options: Options) -> LinearFit:
        """Ridge regression of the rows of a block."""
        train, held_out = self.moments.pop(name)  # frees two (C, C) afterwards
        return fit_ridge(train, held_out, self.sample.columns()[self.places[name]], self.held_labels(), options)

    def held_labels(self) -> Tensor:
        """Labels (M, n) of the rows of `LinearFit.trial`."""
        return self.sample.columns()[-1]
