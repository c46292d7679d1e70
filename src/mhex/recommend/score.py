"""What a race has shown: the best, those that cannot be told from it, and those that random maps are as good as."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from mhex.errors import ArgumentError, ArgumentTypeError, unknown_name
from mhex.judge.plan import Judge, judges
from mhex.judge.report import Report
from mhex.metrics.registry import all_metrics
from mhex.stats.intervals import resampled
from mhex.stats.paired_tests import holm, sign_flip

WEIGHTS: Mapping[str, float] = {"faithfulness": 0.5, "class_sensitivity": 0.25, "stability": 0.25}
_BALANCED = "balanced"
Given = str | Mapping[str, float] | tuple[str, Mapping[str, object]]


@dataclass(frozen=True)
class Score:
    """By what methods are raced.

    Attributes:
        judge: The metric whose rows are made.
        weights: Of its columns; empty where the value of the metric itself is the score.
        units: Spread of each column over methods, which is one unit of it; empty until it is known.
    """

    judge: Judge
    weights: Mapping[str, float] = field(default_factory=dict)
    units: Mapping[str, float] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """What it is, in a sentence."""
        if not self.weights:
            better = "higher" if self.judge.metric.better[0] else "lower"
            return f"Score: {self.judge.label} ({self.judge.metric.protocol}), {better} is better."
        parts = ", ".join(
            f"{weight:.2g} {name.replace('_', ' ')}" + (f" (1 unit = {self.units[name]:.3g})" if self.units else "")
            for name, weight in self.weights.items()
        )
        return (
            f"Score: {parts}, each in units of its spread over methods on the samples of the first round; "
            f"{self.judge.metric.protocol}."
        )

    def with_units(self, report: Report, methods: Sequence[str]) -> Score:
        """The same with units taken from these methods: the spread between methods on an image, over images.

        They are held from then on, so that scores do not change when methods leave.
        """
        if not self.weights:
            return self
        _, rows = report.values(self.judge.label)
        table = torch.stack([rows[name] for name in methods])
        table = table[:, table.isfinite().all(-1).all(0)]  # images that all of them have
        spread = table.var(0, correction=0).mean(0).sqrt()  # (J,): between methods, images as they come
        units = dict(zip(self.judge.metric.columns, spread.tolist(), strict=True))
        # A column in which all methods are the same decides nothing, whatever its unit.
        return replace(self, units={name: units[name] if units[name] > 1e-12 else 1.0 for name in self.weights})

    def values(self, report: Report) -> dict[str, Tensor]:
        """Score of each image, (n,), by method; higher is better, NaN where there is none."""
        if not self.weights:
            sign = 1.0 if self.judge.metric.better[0] else -1.0
            return {name: sign * one for name, one in report.per_image(self.judge.label).items()}
        columns = self.judge.metric.columns
        scale = torch.tensor([self.weights[name] / self.units[name] for name in columns], dtype=torch.float64)
        return {name: rows @ scale for name, rows in report.values(self.judge.label)[1].items()}

    def parts(self, report: Report) -> dict[str, dict[str, Tensor]]:
        """What the score is made of, as measured: for each method, values of each image (n,) by name."""
        if not self.weights:
            name = self.judge.metric.outputs[0]
            return {method: {name: one} for method, one in report.per_image(self.judge.label).items()}
        columns = self.judge.metric.columns
        return {
            method: dict(zip(columns, rows.unbind(1), strict=True))
            for method, rows in report.values(self.judge.label)[1].items()
        }

    def faithful(self, report: Report) -> dict[str, Tensor]:
        """What is compared with random maps: faithfulness alone; the score where there is no such part."""
        if not self.weights:
            return self.values(report)
        place = self.judge.metric.columns.index("faithfulness")
        return {name: rows[:, place] for name, rows in report.values(self.judge.label)[1].items()}


def score_of(given: Given, modality: str, seed: int) -> Score:
    """The score that a user asks for.

    Args:
        given: `"balanced"`; weights of its parts, those left out being 0; or any other metric by name, `"name:preset"`,
            or a pair of a name and parts of its protocol.
        modality: Of the model; texts have no stability.
        seed: Of ties, boxes and noise.
    """
    if isinstance(given, Mapping):
        judge = judges([_BALANCED], modality, seed)[0]
        return Score(judge, _weights(given, judge.metric.columns))
    if not isinstance(given, (str, tuple)):
        raise ArgumentTypeError(
            f"Expected score to be the name of a metric, or weights of {', '.join(WEIGHTS)}, but got "
            f"{type(given).__name__}."
        )
    name = given if isinstance(given, str) else given[0]
    if isinstance(name, str) and name.partition(":")[0] not in all_metrics():
        raise unknown_name("score", name, all_metrics())
    judge = judges([given], modality, seed)[0]
    if judge.spec.name == _BALANCED:
        return Score(judge, _weights(WEIGHTS, judge.metric.columns))
    if judge.metric.better[0] is None:
        raise ArgumentError(f"Neither high nor low is better for {judge.label!r}, so methods cannot be raced by it.")
    return Score(judge)


def _weights(given: Mapping[str, float], columns: Sequence[str]) -> dict[str, float]:
    """Weights of the columns that there are, summing to 1."""
    for name, value in given.items():
        if name not in WEIGHTS:
            raise unknown_name("part of the score", str(name), WEIGHTS)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= float(value) < math.inf:
            raise ArgumentError(f"Expected a weight from 0 on for {name!r}, but got {value!r}.")
    total = sum(float(given.get(name, 0)) for name in columns)
    if not total > 0:
        raise ArgumentError(f"Expected a weight above 0 for one of {', '.join(columns)}, but got {dict(given)!r}.")
    return {name: float(given.get(name, 0)) / total for name in columns}


LEVEL = 0.05
_RESAMPLES = 4000
_TELLING = 8  # with fewer images, flips miss half of what is clear, so that they say nothing against a difference


@dataclass(frozen=True)
class Difference:
    """A difference that should be above 0, on the images that two methods have in common.

    Attributes:
        mean: Of the difference; NaN without a common image.
        own: P of the sign-flip test, two-sided.
        corrected: The same corrected (Holm) for all that were tested together.
        n: Images.
    """

    mean: float
    own: float
    corrected: float
    n: int

    @property
    def said(self) -> str:
        """What was shown: `"yes"`, `"likely"` (without the correction), `"no"`, or `"unknown"` by too few images."""
        if self.mean > 0 and self.own < LEVEL:
            return "yes" if self.corrected < LEVEL else "likely"
        return "no" if self.n >= _TELLING else "unknown"


@dataclass(frozen=True)
class Outcome:
    """Who won, and how sure that is.

    Attributes:
        order: Methods by how far they are behind the best on the images that both have; the best first.
        behind: Mean of the best less each method, and its 95 % bootstrap interval, by name; those of the best are 0.
        worse: The best against each method, by name.
        sure: Share of resamples of the images in which no method was ahead of the best.
        images: Images of each.
    """

    order: tuple[str, ...]
    behind: Mapping[str, tuple[float, float, float]]
    worse: Mapping[str, Difference]
    sure: float
    images: Mapping[str, int]

    @property
    def best(self) -> str:
        return self.order[0]

    @property
    def equals(self) -> tuple[str, ...]:
        """Methods that nothing speaks against: not worse than the best also by a test of its own."""
        return tuple(name for name in self.order[1:] if self.worse[name].said in ("no", "unknown"))


def outcome_of(values: Mapping[str, Tensor], last: Sequence[str], seed: int = 0) -> Outcome:
    """Who won.

    Pairs are tested by flips of signs, as in tables, with Holm's correction for all pairs with the best.

    Args:
        values: Score of each image, (n,), by method, without control maps; NaN where it has none.
        last: Methods of the last round, of which the one with the best mean has won.
        seed: Of the bootstrap.
    """
    common = torch.stack([values[name].isfinite() for name in last]).all(0)
    best = max(last, key=lambda name: _mean(values[name][common]))
    others = [name for name in values if name != best]
    differences = {name: values[best] - values[name] for name in others}  # NaN where either has no value
    shown = above_zero(list(differences.values()), seed)
    behind = {best: (0.0, 0.0, 0.0)}
    sure = 1.0
    if others:
        table = torch.stack([differences[name] for name in others], 1)
        used = table[table.isfinite().any(1)]
        draws = resampled(used, lambda rows: rows.nanmean(-2), _RESAMPLES, seed)
        ends = draws.nanquantile(torch.tensor([0.025, 0.975], dtype=draws.dtype), 0)
        for k, name in enumerate(others):
            behind[name] = (float(used[:, k].nanmean()), float(ends[0, k]), float(ends[1, k]))
        # Where a draw has no image of a method, it says nothing of that one.
        sure = float((draws.nan_to_num(math.inf) > 0).all(1).double().mean())
    order = sorted(others, key=lambda name: behind[name][0])
    counts = {name: int(one.isfinite().sum()) for name, one in values.items()}
    return Outcome((best, *order), behind, dict(zip(others, shown, strict=True)), sure, counts)


def above(values: Mapping[str, Tensor], floor: str, methods: Sequence[str], seed: int = 0) -> dict[str, Difference]:
    """Whether methods are better than a control map, by name.

    Args:
        values: Of each image, (n,), higher better, by method; NaN where there is none.
        floor: Name of the control.
        methods: Those to be tested.
        seed: Of the flips.
    """
    return dict(zip(methods, above_zero([values[name] - values[floor] for name in methods], seed), strict=True))


def above_zero(differences: Sequence[Tensor], seed: int = 0) -> list[Difference]:
    """Tests of differences, (n,) each, that should be above 0; NaN does not count.

    The same as in tables: two-sided sign flips, corrected for all, and then whether the mean is above 0.
    """
    if not differences:
        return []
    table = torch.stack(list(differences), 1).double().cpu()
    there = table.isfinite()
    counts, d = there.sum(0), table.where(there, 0.0)
    own = sign_flip(d, seed).tolist()
    means = (d.sum(0) / counts).tolist()
    return [Difference(*one) for one in zip(means, own, holm(own), counts.tolist(), strict=True)]


def _mean(values: Tensor) -> float:
    return float(values.mean()) if len(values) else -math.inf
