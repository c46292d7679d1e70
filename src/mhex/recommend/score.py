"""The score that ranks methods in a race: a metric, or weighted columns of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from mhex._settings import check_number, check_that
from mhex.errors import ArgumentError, ArgumentTypeError, unknown_name
from mhex.judge.plan import MetricRun, metric_runs
from mhex.judge.report import Report
from mhex.metrics.registry import all_metrics

DEFAULT = "removal"
# Metrics of several columns, and the weight of each column where users give none.
WEIGHTS: Mapping[str, Mapping[str, float]] = {
    DEFAULT: {"agreement": 1 / 3, "insertion": 1 / 3, "deletion": 1 / 3},
    "balanced": {"faithfulness": 0.5, "class_sensitivity": 0.25, "stability": 0.25},
}
ScoreGiven = str | Mapping[str, float] | tuple[str, Mapping[str, object]]
_PARTS = [name for weights in WEIGHTS.values() for name in weights]
_FAITHFUL = "faithfulness"
_MIN_UNIT = 0.01  # where methods nearly agree on a column, so that differences by rounding do not decide a race


@dataclass(frozen=True)
class Score:
    """The score that ranks methods in a race."""

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
        return replace(self, units={name: max(units[name], _MIN_UNIT) for name in self.weights})

    def parts(self, report: Report) -> dict[str, dict[str, Tensor]]:
        """What the score is made of, as measured: for each method, values of each image (n,) by name."""
        if not self.weights:
            name = self.metric.metric.outputs[0]
            return {method: {name: values} for method, values in report.per_image(self.metric.label).items()}
        rows, columns = report.values(self.metric.label)[1], self.metric.metric.columns
        return {method: dict(zip(columns, numbers.unbind(1), strict=True)) for method, numbers in rows.items()}

    def values(self, report: Report) -> dict[str, Tensor]:
        """Score of each image, (n,), by method; higher is better, NaN where there is none."""
        better = self.metric.metric.better
        scale = [weight / self.units[name] for name, weight in self.weights.items()] or [1.0]
        scale = [size if higher else -size for size, higher in zip(scale, better, strict=False)]
        factors = torch.tensor(scale, dtype=torch.float64)
        return {name: torch.stack([*parts.values()], 1) @ factors for name, parts in self.parts(report).items()}

    def faithful(self, report: Report) -> dict[str, Tensor]:
        """What is compared with random maps: faithfulness alone; the score where there is no such part."""
        if _FAITHFUL not in self.weights:
            return self.values(report)
        return {name: parts[_FAITHFUL] for name, parts in self.parts(report).items()}


def score_of(score: ScoreGiven, modality: str, seed: int) -> Score:
    """The score that a user asks for, see `mhex.recommend`; weights left out are 0, and texts have no stability."""
    if not isinstance(score, (str, tuple, Mapping)):
        raise ArgumentTypeError(f"Expected a metric or weights of {', '.join(_PARTS)}, but got {type(score).__name__}.")
    entry = _weighted(score) if isinstance(score, Mapping) else score
    name: Any = entry if isinstance(entry, str) else entry[0]
    if isinstance(name, str) and name.partition(":")[0] not in all_metrics():
        raise unknown_name("score", name, all_metrics())
    metric = metric_runs([entry], modality, seed)[0]
    if metric.spec.name in WEIGHTS:
        weights = score if isinstance(score, Mapping) else WEIGHTS[metric.spec.name]
        return Score(metric, _weights(weights, metric.metric.columns))
    if metric.metric.better[0] is None:
        raise ArgumentError(f"Neither high nor low is better for {metric.label!r}, so methods cannot be raced by it.")
    return Score(metric)


def _weighted(weights: Mapping[str, float]) -> str:
    """The metric whose columns are weighed; parts of several are refused."""
    for name, value in weights.items():
        if name not in _PARTS:
            raise unknown_name("part of the score", str(name), _PARTS)
        check_number(f"the weight of {name!r}", value)
    metrics = [name for name, columns in WEIGHTS.items() if set(weights) & set(columns)]
    choices = " or ".join(", ".join(columns) for columns in WEIGHTS.values())
    check_that(len(metrics) == 1, f"weights of the parts of one score, {choices}", ", ".join(weights) or "none")
    return metrics[0]


def _weights(weights: Mapping[str, float], columns: Sequence[str]) -> dict[str, float]:
    """Weights of the columns that there are, summing to 1."""
    total = sum(float(weights.get(name, 0)) for name in columns)
    check_that(total > 0, f"a weight above 0 for one of {', '.join(columns)}", dict(weights))
    return {name: float(weights.get(name, 0)) / total for name in columns}
