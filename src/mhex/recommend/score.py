"""By what methods are raced, and what a race shows: the best method, its equals, and those no better than chance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from mhex._settings import check_number, check_that
from mhex.errors import ArgumentError, ArgumentTypeError, unknown_name
from mhex.judge.plan import MetricRun, metric_runs
from mhex.judge.report import Report
from mhex.metrics.registry import all_metrics
from mhex.stats.intervals import resampled
from mhex.stats.paired_tests import at_floor, holm, sign_flip

WEIGHTS: Mapping[str, float] = {"faithfulness": 0.5, "class_sensitivity": 0.25, "stability": 0.25}
LEVEL = 0.05
FEW = 8  # with fewer images, flips miss half of what is clear, so that they say nothing against a difference
ScoreGiven = str | Mapping[str, float] | tuple[str, Mapping[str, object]]
_BALANCED = "balanced"
_RESAMPLES = 4000


@dataclass(frozen=True)
class Score:
    """By what methods are raced."""

    metric: MetricRun  # the metric whose rows are made
    # Weights of its columns; empty where the value of the metric itself is the score
    weights: Mapping[str, float] = field(default_factory=dict)
    # Spread of each column over methods, which is one unit of it; empty until it is known
    units: Mapping[str, float] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """The score in a sentence."""
        protocol = self.metric.metric.protocol
        if not self.weights:
            better = "higher" if self.metric.metric.better[0] else "lower"
            return f"Score: {self.metric.label} ({protocol}), {better} is better."
        parts = ", ".join(
            f"{weight:.2g} {name.replace('_', ' ')}" + (f" (1 unit = {self.units[name]:.3g})" if self.units else "")
            for name, weight in self.weights.items()
        )
        units = "each in units of its spread over methods on the samples of the first round"
        return f"Score: {parts}, {units}; {protocol}."

    def with_units(self, report: Report, methods: Sequence[str]) -> Score:
        """The score in units: spreads between these methods on an image, over images. They stay when methods leave."""
        if not self.weights:
            return self
        _, rows = report.values(self.metric.label)
        table = torch.stack([rows[name] for name in methods])
        table = table[:, table.isfinite().all(-1).all(0)]  # images that all of them have
        spread = table.var(0, correction=0).mean(0).sqrt()  # (J,): between methods, images as they come
        units = dict(zip(self.metric.metric.columns, spread.tolist(), strict=True))
        # A column in which all methods are the same decides nothing, whatever its unit.
        return replace(self, units={name: units[name] if units[name] > 1e-12 else 1.0 for name in self.weights})

    def parts(self, report: Report) -> dict[str, dict[str, Tensor]]:
        """What the score is made of, as measured: for each method, values of each image (n,) by name."""
        if not self.weights:
            name = self.metric.metric.outputs[0]
            return {method: {name: values} for method, values in report.per_image(self.metric.label).items()}
        rows, columns = report.values(self.metric.label)[1], self.metric.metric.columns
        return {method: dict(zip(columns, numbers.unbind(1), strict=True)) for method, numbers in rows.items()}

    def values(self, report: Report) -> dict[str, Tensor]:
        """Score of each image, (n,), by method; higher is better, NaN where there is none."""
        scale = [weight / self.units[name] for name, weight in self.weights.items()]
        scale = scale or [1.0 if self.metric.metric.better[0] else -1.0]
        factors = torch.tensor(scale, dtype=torch.float64)
        return {name: torch.stack([*parts.values()], 1) @ factors for name, parts in self.parts(report).items()}

    def faithful(self, report: Report) -> dict[str, Tensor]:
        """What is compared with random maps: faithfulness alone; the score where there is no such part."""
        if not self.weights:
            return self.values(report)
        return {name: parts["faithfulness"] for name, parts in self.parts(report).items()}


def score_of(score: ScoreGiven, modality: str, seed: int) -> Score:
    """The score that a user asks for, see `mhex.recommend`; weights left out are 0, and texts have no stability."""
    if not isinstance(score, (str, tuple, Mapping)):
        raise ArgumentTypeError(
            f"Expected a metric or weights of {', '.join(WEIGHTS)}, but got {type(score).__name__}."
        )
    name = _BALANCED if isinstance(score, Mapping) else score if isinstance(score, str) else score[0]
    if isinstance(name, str) and name.partition(":")[0] not in all_metrics():
        raise unknown_name("score", name, all_metrics())
    metric = metric_runs([name if isinstance(score, Mapping) else score], modality, seed)[0]
    if metric.spec.name == _BALANCED:
        return Score(metric, _weights(score if isinstance(score, Mapping) else WEIGHTS, metric.metric.columns))
    if metric.metric.better[0] is None:
        raise ArgumentError(f"Neither high nor low is better for {metric.label!r}, so methods cannot be raced by it.")
    return Score(metric)


def _weights(weights: Mapping[str, float], columns: Sequence[str]) -> dict[str, float]:
    """Weights of the columns that there are, summing to 1."""
    for name, value in weights.items():
        if name not in WEIGHTS:
            raise unknown_name("part of the score", str(name), WEIGHTS)
        check_number(f"the weight of {name!r}", value)
    total = sum(float(weights.get(name, 0)) for name in columns)
    check_that(total > 0, f"a weight above 0 for one of {', '.join(columns)}", dict(weights))
    return {name: float(weights.get(name, 0)) / total for name in columns}


@dataclass(frozen=True)
class Difference:
    """A difference that should be above 0, on the images that two methods have in common."""

    mean: float  # mean of the difference; NaN without a common image
    p: float  # P of the sign-flip test, two-sided
    corrected: float  # the same corrected (Holm) for all that were tested together
    n: int  # number of images

    @property
    def at_floor(self) -> bool:
        """Whether no drawn flip reached the difference, so that both p are upper bounds."""
        return at_floor(self.p)

    @property
    def answer(self) -> str:
        """What was shown: `"yes"`, `"likely"` (without the correction), `"no"`, or `"unknown"` by too few images."""
        if self.mean > 0 and self.p < LEVEL:
            return "yes" if self.corrected < LEVEL else "likely"
        return "no" if self.n >= FEW else "unknown"


@dataclass(frozen=True)
class RaceResult:
    """The method that won, and how sure that is."""

    order: tuple[str, ...]  # methods by how far they are behind the best on the images that both have; the best first
    # Mean of the best less each method, and its 95 % bootstrap interval, by name; those of the best are 0
    behind: Mapping[str, tuple[float, float, float]]
    worse: Mapping[str, Difference]  # the best against each method, by name
    sure: float  # share of resamples of the images in which no method was ahead of the best
    images: Mapping[str, int]  # number of images of each

    @property
    def best(self) -> str:
        return self.order[0]

    @property
    def equals(self) -> tuple[str, ...]:
        """Methods that nothing speaks against: not worse than the best also by a test of their own."""
        return tuple(name for name in self.order[1:] if self.worse[name].answer in ("no", "unknown"))


def race_result(values: Mapping[str, Tensor], last: Sequence[str], seed: int = 0) -> RaceResult:
    """The result of a race.

    Values are scores of each image, (n,), by method; NaN where it has none. Of the methods of the last round the one
    with the best mean has won. Pairs are tested by flips of signs, as in tables, with Holm's correction for all pairs
    with the best.
    """
    common = torch.stack([values[name].isfinite() for name in last]).all(0)
    means = {name: float(values[name][common].mean()) if common.any() else -math.inf for name in last}
    best = max(last, key=means.__getitem__)
    names = [name for name in values if name != best]
    differences = {name: values[best] - values[name] for name in names}  # NaN where either has no value
    behind, sure = {best: (0.0, 0.0, 0.0)}, 1.0
    if names:
        table = torch.stack(list(differences.values()), 1)
        finite = table[table.isfinite().any(1)]
        draws = resampled(finite, lambda rows: rows.nanmean(-2), _RESAMPLES, seed)
        ends = draws.nanquantile(torch.tensor([0.025, 0.975], dtype=draws.dtype), 0)
        spans = zip(finite.nanmean(0).tolist(), *ends.tolist(), strict=True)
        behind |= dict(zip(names, spans, strict=True))
        # Where a draw has no image of a method, it says nothing of that one.
        sure = float((draws.nan_to_num(math.inf) > 0).all(1).double().mean())
    order = sorted(names, key=lambda name: behind[name][0])
    counts = {name: int(scores.isfinite().sum()) for name, scores in values.items()}
    return RaceResult((best, *order), behind, above_zero(differences, seed), sure, counts)


def above(values: Mapping[str, Tensor], floor: str, methods: Sequence[str], seed: int = 0) -> dict[str, Difference]:
    """Whether methods are better than a control map, by name, from values of each image, (n,), higher being better."""
    return above_zero({name: values[name] - values[floor] for name in methods}, seed)


def above_zero(differences: Mapping[str, Tensor], seed: int = 0) -> dict[str, Difference]:
    """Tests of differences, (n,) each, that should be above 0, by name; NaN does not count."""
    # The same as in tables: two-sided sign flips, corrected for all, and then whether the mean is above 0.
    if not differences:
        return {}
    table = torch.stack(list(differences.values()), 1).double().cpu()
    finite = table.isfinite()
    counts, d = finite.sum(0), table.where(finite, 0.0)
    p = sign_flip(d, seed).tolist()
    tests = zip((d.sum(0) / counts).tolist(), p, holm(p), counts.tolist(), strict=True)
    return {name: Difference(*test) for name, test in zip(differences, tests, strict=True)}
