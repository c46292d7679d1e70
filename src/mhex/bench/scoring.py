"""The score of an image: a weighted sum of the numbers of a metric, each in units of its spread over methods."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from mhex.bench.plan import Judge, judges
from mhex.bench.report import Report
from mhex.errors import ArgumentError, ArgumentTypeError, unknown_name
from mhex.metrics.registry import all_metrics

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
