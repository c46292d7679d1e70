"""Rows of a batch: the numbers of a metric, and the curves that it read."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from mhex.bench.gaps import Gaps
from mhex.bench.plan import Judge, Judged
from mhex.bench.store import Key
from mhex.metrics._curve import CurveMetric
from mhex.metrics.case import Case


def keys_of(ids: Iterable[int], marks: Iterable[str], method: Judged, metric: Judge) -> set[Key]:
    """Keys of the rows of samples by a method and a metric."""
    rest = (method.name, method.written, metric.label, str(metric.metric.protocol))
    return {(i, mark, *rest) for i, mark in zip(ids, marks, strict=True)}


def curve_keys_of(ids: Iterable[int], marks: Iterable[str], method: Judged, metric: Judge) -> set[Key]:
    """Keys of the curves; none of a metric that reads no sweep."""
    made = metric.metric
    orders = made.orders if isinstance(made, CurveMetric) else ()
    return {(*key, order) for key in keys_of(ids, marks, method, metric) for order in orders}


def rows_of(
    case: Case, gaps: Gaps, marks: tuple[str, ...], method: Judged, metric: Judge, explain_seconds: float
) -> Iterator[dict[str, Any]]:
    """A row for each sample and number of a metric; NaN where a map is not finite."""
    started = time.perf_counter()
    gaps.begin(metric.label, case)
    numbers = metric.metric.score(*metric.metric.of(case)).double().cpu()
    numbers = numbers[:, None] if numbers.dim() == 1 else numbers
    numbers = numbers.masked_fill(gaps.of(case)[:, None], math.nan)
    seconds = (time.perf_counter() - started) / len(case.ids)
    for image, mark, values in zip(case.ids, marks, numbers.tolist(), strict=True):
        for column, value in zip(metric.metric.columns, values, strict=True):
            yield {
                **_whose(image, mark, method, metric),
                "settings": metric.settings,
                "column": column,
                "value": value,
                "seconds": seconds,
                "explain_seconds": explain_seconds,
            }


def empty_rows(ids: Iterable[int], marks: Iterable[str], method: Judged, metric: Judge) -> Iterator[dict[str, Any]]:
    """Rows of samples that cannot be judged: NaN in the place of every number."""
    nothing = dict.fromkeys(("value", "seconds", "explain_seconds"), math.nan)
    for image, mark in zip(ids, marks, strict=True):
        for column in metric.metric.columns:
            yield {**_whose(image, mark, method, metric), "settings": metric.settings, "column": column, **nothing}


def empty_curves(ids: Iterable[int], marks: Iterable[str], method: Judged, metric: Judge) -> Iterator[dict[str, Any]]:
    """Curves of such samples, which have no points."""
    made = metric.metric
    for image, mark in zip(ids, marks, strict=True):
        for order in made.orders if isinstance(made, CurveMetric) else ():
            yield {**_whose(image, mark, method, metric), "order": order, "points": []}


def curve_rows_of(
    case: Case, gaps: Gaps, marks: tuple[str, ...], method: Judged, metric: Judge
) -> Iterator[dict[str, Any]]:
    """A row for each sample and order that a metric reads; nothing of a metric that reads no sweep."""
    made = metric.metric
    if not isinstance(made, CurveMetric):
        return
    gaps.begin(metric.label, case)
    found = made.curves(*made.of(case))
    lost = gaps.of(case)[:, None]
    for order, curves in found.items():
        curves = curves.to(torch.float32).cpu().masked_fill(lost, math.nan)
        for image, mark, points in zip(case.ids, marks, curves.tolist(), strict=True):
            yield {**_whose(image, mark, method, metric), "order": order, "points": points}


def _whose(image: int, mark: str, method: Judged, metric: Judge) -> dict[str, Any]:
    return {
        "image": image,
        "input": mark,
        "method": method.name,
        "options": method.written,
        "metric": metric.label,
        "protocol": str(metric.metric.protocol),
    }
