"""Rows of a report: how they are made of a case, read as tensors, and merged from several reports."""

import json
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow.compute as pc
import torch
from torch import Tensor

from mhex._settings import check_that
from mhex.errors import ArgumentError
from mhex.judge.cases import Gaps
from mhex.judge.plan import MethodRun, MetricRun, label
from mhex.judge.store import Key, Row, SampleKey, labels_of, records
from mhex.metrics.base import PerImage
from mhex.metrics.case import Case
from mhex.metrics.curve import CurveMetric

_RELATIVE, _ABSOLUTE = 1e-3, 1e-6  # an image in another batch or on another device gives values that differ by rounding


class RowGroup:
    """What the rows and curves of some samples by one method and one metric share; no orders unless curves are kept."""

    def __init__(self, samples: Iterable[SampleKey], method: MethodRun, metric: MetricRun, curves: bool) -> None:
        self.metric = metric
        names = {"method": method.name, "options": method.options_json}
        names |= {"metric": metric.label, "protocol": str(metric.metric.protocol)}
        self.samples = [{"image": image, "input": digest, **names} for image, digest in samples]
        self.orders = tuple(metric.metric.orders) if curves and isinstance(metric.metric, CurveMetric) else ()


def rows_of(
    group: RowGroup, case: Case | None = None, gaps: Gaps | None = None, explain_seconds: float = math.nan
) -> Iterator[dict[str, Any]]:
    """A row for each sample and number of a metric; NaN where a map is not finite, and without a case."""
    started, metric, seconds = time.perf_counter(), group.metric.metric, math.nan
    numbers = torch.full((len(group.samples), len(metric.columns)), math.nan)
    if case is not None and gaps is not None:
        gaps.begin(group.metric.label, case)
        numbers = metric.score(*metric.of(case)).double().cpu().view(numbers.shape)
        numbers = numbers.masked_fill(gaps.of(case)[:, None], math.nan)
        seconds = (time.perf_counter() - started) / len(case.ids)
    for sample, values in zip(group.samples, numbers.tolist(), strict=True):
        entry = {**sample, "settings": group.metric.settings, "seconds": seconds, "explain_seconds": explain_seconds}
        for column, value in zip(metric.columns, values, strict=True):
            yield {**entry, "column": column, "value": value}


def curve_rows_of(group: RowGroup, case: Case | None = None, gaps: Gaps | None = None) -> Iterator[dict[str, Any]]:
    """A row for each sample and order that a metric reads; without points if there is no case."""
    metric, curves = group.metric.metric, {}
    if group.orders and case is not None and gaps is not None and isinstance(metric, CurveMetric):
        gaps.begin(group.metric.label, case)
        curves, holes = metric.curves(*metric.of(case)), gaps.of(case)[:, None]
        curves = {order: points.float().cpu().masked_fill(holes, math.nan) for order, points in curves.items()}
    for order in group.orders:
        points = curves[order].tolist() if curves else [[]] * len(group.samples)
        for sample, values in zip(group.samples, points, strict=True):
            yield {**sample, "order": order, "points": values}


class _RowPlaces:
    """Where the methods and samples of an arrow table have their places in tensors."""

    def __init__(self, table: Any) -> None:
        labels = labels_of(table)
        samples = list(records(table, "image", "input"))  # samples of other data may have the same numbers
        self.methods = {name: k for k, name in enumerate(dict.fromkeys(labels))}
        places = {sample: k for k, sample in enumerate(sorted(set(samples)))}
        self.ids = torch.tensor([image for image, _ in places])
        method, place = [self.methods[name] for name in labels], [places[sample] for sample in samples]
        self.index = torch.tensor(method), torch.tensor(place)


def numbers_of(rows: Any, metric: str, columns: Sequence[str]) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """Ids of the images (n,), the numbers of each method (n, J), and whether it was judged on each image, bool (n,).

    Numbers are NaN where an image has none; an image that a method was judged on may have NaN, too.
    """
    part = rows.filter(pc.equal(rows.column("metric"), metric))
    names = part.column("column").to_pylist()
    strange, advice = sorted(set(names) - set(columns)), ": it is damaged, or of another version"
    check_that(not strange, f"the numbers {', '.join(columns)} of {metric!r} in the report", f"{strange[:1]}", advice)
    places = _RowPlaces(part)
    size = (len(places.methods), len(places.ids))
    numbers, presence = torch.full((*size, len(columns)), torch.nan, dtype=torch.float64), torch.zeros(size).bool()
    values = part.column("value").fill_null(math.nan).to_pylist()
    index = (*places.index, torch.tensor([list(columns).index(name) for name in names]))
    numbers[index], presence[places.index] = torch.tensor(values, dtype=torch.float64), True
    by_method = dict(zip(places.methods, numbers, strict=True))
    return places.ids, by_method, dict(zip(places.methods, presence, strict=True))


def unjudged_in(rows: Any) -> list[int]:
    """Numbers of the samples that have rows without having been judged."""
    return sorted(set(rows.filter(pc.is_nan(rows.column("explain_seconds"))).column("image").to_pylist()))


def explain_seconds(rows: Any) -> dict[str, float]:
    """What an explanation took, by method: the median over samples."""
    # A sample may have been explained more than once; what was read from a cache took next to nothing, so the longest
    # counts. Samples that could not be judged have NaN.
    longest = rows.group_by(["method", "options", "image", "input"]).aggregate([("explain_seconds", "max")])
    times: dict[str, list[float]] = {name: [] for name in labels_of(rows)}
    for name, (seconds,) in zip(labels_of(longest), records(longest, "explain_seconds_max"), strict=True):
        times[name] += [] if math.isnan(seconds) else [seconds]
    return {name: float(torch.tensor(values or [math.nan]).median()) for name, values in times.items()}


def curves_of(
    table: Any, metric: str, reader: PerImage, order: str | None, methods: Sequence[str]
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """What `Report.curves` returns, from an arrow table of curves."""
    if not isinstance(reader, CurveMetric):
        raise ArgumentError(f"Metric {metric!r} reads no curves.")
    order = reader.orders[0] if order is None else order
    check_that(order in reader.orders, f"an order of {metric!r}, {' or '.join(reader.orders)}", repr(order))
    # Samples without judgement have no points.
    judged = pc.list_value_length(pc.field("points")) > 0
    part = table.filter((pc.field("metric") == metric) & (pc.field("order") == order) & judged)
    points, places = part.column("points").to_pylist(), _RowPlaces(part)
    shares = reader.shares(order)
    lengths = {len(shares), *map(len, points)}
    listed = " and ".join(str(length - 1) for length in sorted(lengths))
    advice = ": they are of different versions; judge all images in a folder of their own"
    check_that(len(lengths) == 1, f"curves of {metric!r} on one grid", f"some of {listed} steps", advice)
    names = [name for name in methods if name in places.methods]
    advice = ": folders of evaluate(out=...) have them, not single files or merged reports, nor with curves=False"
    check_that(bool(names), f"curves of {metric!r} in this report", "none", advice)
    curves = torch.full((len(places.methods), len(places.ids), len(shares)), torch.nan)
    curves[places.index] = torch.tensor(points)
    return places.ids, shares, {name: curves[places.methods[name]] for name in names}


def merged(reports: Sequence[Sequence[Row]]) -> list[dict[str, Any]]:
    """Rows of all reports, each once.

    A sample is known by its number and by its digest (input, label, mask and what else the data says of it): ties,
    boxes and noise are drawn by the number, and what was drawn in another way cannot be paired. Samples of other data
    are never paired, also where they have the same number: they stay samples of their own.
    """
    _check_runs(row for rows in reports for row in rows)
    _check_settings(row for rows in reports for row in rows)
    waiting = [(rows, {(row["image"], row["input"]) for row in rows}) for rows in reports]
    samples: set[SampleKey] = set()
    by_key: dict[Key, dict[str, Any]] = {}
    while waiting:
        # What has samples in common comes first, so that the order in which reports are given does not matter.
        rows, new = waiting.pop(next((k for k, (_, keys) in enumerate(waiting) if keys & samples), 0))
        if samples:
            _check_samples(by_key.values(), rows, samples, new)
        samples |= new
        for row in rows:
            key = tuple(row[name] for name in ("image", "input", "method", "options", "metric", "column"))
            _check_value(by_key.setdefault(key, dict(row)), row)
    return list(by_key.values())


def _check_runs(rows: Iterable[Row]) -> None:
    """Refuse rows of different models, tasks, targets or seeds."""
    runs = [json.loads(text) for text in dict.fromkeys(row["run"] for row in rows)]
    for run in runs[1:]:
        names = sorted(name for name in {*run, *runs[0]} if run.get(name) != runs[0].get(name))
        listed = "; ".join(f"{name} {runs[0].get(name)} and {run.get(name)}" for name in names)
        check_that(not names, "reports of one model, task, target and seed", listed)


def _check_settings(rows: Iterable[Row]) -> None:
    """Refuse rows of one metric that were measured in different ways."""
    by_name: dict[str, tuple[Any, str]] = {}
    for name, settings, protocol in dict.fromkeys((row["metric"], row["settings"], row["protocol"]) for row in rows):
        entry = (json.loads(settings), protocol)
        is_equal, protocols = by_name.setdefault(name, entry) == entry, f"{by_name[name][1]}; and {protocol}"
        advice = "; leave it out of one report with only(metrics=...)"
        check_that(is_equal, f"{name!r} to be measured in one way", protocols, advice)


def _check_samples(before: Iterable[Row], rows: Iterable[Row], samples: set[SampleKey], new: set[SampleKey]) -> None:
    """Refuse rows whose samples cannot be paired."""
    # With a common sample both are of the same data, where a number must not stand for two samples. Without one, more
    # samples of the same methods are welcome, and other methods cannot be compared.
    if common := samples & new:
        wrong = sorted({image for image, _ in samples - common} & {image for image, _ in new - common})
        actual = f"{len(wrong)} with another input, label, mask or the like, such as image {min(wrong, default=None)}"
        check_that(not wrong, "the same samples in both reports", actual, "; judge all methods on the same data")
        return
    digests = {digest for _, digest in samples} & {digest for _, digest in new}
    first, second = (
        {(row["metric"], label(row["method"], row["options"])) for row in group} for group in (before, rows)
    )
    metrics = {metric for metric, _ in first} & {metric for metric, _ in second}
    for metric, method in sorted(pair for pair in first ^ second if pair[0] in metrics):
        why = f"the {len(digests)} that they share have other numbers" if digests else "inputs, labels or masks differ"
        raise ArgumentError(
            f"Expected reports of the same samples, or of the same methods, but they have no sample in common ({why}), "
            f"and only one has {method!r} for {metric!r}; judge all methods on the same data, in the same order."
        )


def _check_value(before: Row, row: Row) -> None:
    first, second = (math.nan if entry["value"] is None else entry["value"] for entry in (before, row))
    equal = math.isclose(first, second, rel_tol=_RELATIVE, abs_tol=_ABSOLUTE)
    entry = f"{row['metric']!r} ({row['column']}) for {label(row['method'], row['options'])!r} on image {row['image']}"
    advice = ": the reports number samples differently, by which ties are drawn, or are of different versions"
    right = equal or (math.isnan(first) and math.isnan(second))
    check_that(right, f"one value of {entry}", f"{first:g} and {second:g}", advice)
