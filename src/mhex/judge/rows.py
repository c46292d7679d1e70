"""Rows of several reports as one: samples are known by what they are, and whatever cannot be right is refused."""

from __future__ import annotations

import json
import math
import time
import warnings
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mhex.errors import ArgumentError, MhexWarning
from mhex.inputs.samples import losses_in_words
from mhex.judge.plan import Judge, Judged, label
from mhex.judge.store import Key
from mhex.metrics.base import PerImage
from mhex.metrics.case import Case
from mhex.metrics.curve import CurveMetric

_OWN = "own"


class Gaps:
    """Samples of a batch whose maps by one method are NaN or infinite.

    Metrics are given zeros in their place, and what they say of such a sample is taken back. Maps beside the own ones
    are known by what they were made for, so that a metric loses the samples whose maps it used, whoever asked first.

    Attributes:
        lost: Ids of the samples that did not count for one of the metrics so far.
    """

    def __init__(self, ids: Sequence[int]) -> None:
        self.ids = tuple(ids)
        self.lost: set[int] = set()
        self._asking: Hashable = None
        self._found: dict[Hashable, Tensor] = {}

    def begin(self, label: str, case: Case) -> None:
        """A metric begins; what it asks a case for is noted from here on."""
        self._asking = ("metric", label)
        case.used = set()

    def own(self, maps: Tensor) -> Tensor:
        """Maps that all metrics read, (B, ...)."""
        return self._filled(maps, _OWN)

    def again(self, maps: Tensor, case: Case) -> Tensor:
        """Maps for what a case is making, which other metrics may share; or for the metric itself."""
        return self._filled(maps, self._asking if case.making is None else ("shared", case.making))

    def of(self, case: Case) -> Tensor:
        """Samples that do not count for the metric that was begun last, bool (B,)."""
        found = torch.zeros(len(self.ids), dtype=torch.bool)
        for part in (_OWN, self._asking, *(("shared", name) for name in case.used)):
            found |= self._found.get(part, torch.tensor(False))
        self.lost |= {i for i, gone in zip(self.ids, found.tolist(), strict=True) if gone}
        return found

    def _filled(self, maps: Tensor, part: Hashable) -> Tensor:
        bad = ~maps.flatten(1).isfinite().all(1)
        if not bool(bad.any()):
            return maps
        self._found[part] = self._found.get(part, torch.tensor(False)) | bad.cpu()
        return maps.masked_fill(bad.view(-1, *(1,) * (maps.dim() - 1)), 0.0)


def warn_of(skipped: Mapping[str, set[int]], count: int) -> None:
    """Say for each method how many of so many samples do not count."""
    for method, ids in skipped.items():
        warnings.warn(
            f"Method {method!r} gave maps that are not finite for {len(ids)} of {count} samples; they are skipped.",
            MhexWarning,
            stacklevel=3,
        )


def warn_of_lost(lost: Mapping[int, str], count: int) -> None:
    """Say which of so many samples count for no method, and why.

    Raises:
        ArgumentError: No sample is left.
    """
    if not lost:
        return
    sentence = f"{len(lost)} of {count} samples could not be judged: {losses_in_words(lost)}."
    if len(lost) >= count:
        raise ArgumentError(sentence)
    warnings.warn(sentence, MhexWarning, stacklevel=3)


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


def numbers_of(rows: Any, metric: str, columns: Sequence[str]) -> tuple[Tensor, dict[str, Tensor]]:
    """Ids of the images (n,), and for each method its numbers (n, J); NaN where an image has none.

    Args:
        rows: An arrow table of rows.
        metric: Its name in the report.
        columns: Names of its J numbers.
    """
    import pyarrow.compute as pc

    part = rows.filter(pc.equal(rows.column("metric"), metric)).to_pydict()
    labels, at_name, at_sample, names, samples = _places(part)
    at_column = {one: k for k, one in enumerate(columns)}
    if strange := sorted(set(part["column"]) - at_column.keys()):
        raise ArgumentError(
            f"Expected the numbers {', '.join(columns)} of {metric!r} in the report, but got {strange[0]!r}: it is "
            "damaged, or of another version."
        )
    found = torch.full((len(at_name), len(at_sample), len(columns)), torch.nan, dtype=torch.float64)
    place = (
        torch.tensor([at_name[labels[one]] for one in names]),
        torch.tensor([at_sample[one] for one in samples]),
        torch.tensor([at_column[one] for one in part["column"]]),
    )
    values = [float("nan") if value is None else value for value in part["value"]]
    found[place] = torch.tensor(values, dtype=torch.float64)
    return torch.tensor([image for image, _ in at_sample]), dict(zip(at_name, found, strict=True))


def presence_of(rows: Any, metric: str) -> dict[str, Tensor]:
    """For each method, whether it was judged on each image by a metric, bool (n,), in the order of `numbers_of`.

    An image that a method was judged on counts as such also where its numbers are NaN.
    """
    import pyarrow.compute as pc

    part = rows.filter(pc.equal(rows.column("metric"), metric)).to_pydict()
    labels, at_name, at_sample, names, samples = _places(part)
    there = torch.zeros(len(at_name), len(at_sample), dtype=torch.bool)
    lines, columns = [at_name[labels[name]] for name in names], [at_sample[sample] for sample in samples]
    there[torch.tensor(lines), torch.tensor(columns)] = True
    return dict(zip(at_name, there, strict=True))


def unjudged_in(rows: Any) -> list[int]:
    """Numbers of the samples that have rows without having been judged, see `mhex.judge.rows.empty_rows`."""
    import pyarrow.compute as pc

    return sorted(set(rows.filter(pc.is_nan(rows.column("explain_seconds"))).column("image").to_pylist()))


def explain_seconds(rows: Any) -> dict[str, float]:
    """What an explanation took, by method: the median over samples.

    A sample may have been explained more than once; what was read from a cache took next to nothing, so the longest
    counts.

    Args:
        rows: An arrow table of rows.
    """
    names = ("method", "options", "image", "input", "explain_seconds")
    longest: dict[str, dict[Any, float]] = {}
    for method, options, *sample, took in zip(*(rows.column(name).to_pylist() for name in names), strict=True):
        own = longest.setdefault(label(method, options), {})
        if not math.isnan(took):  # samples that could not be judged
            own[tuple(sample)] = max(took, own.get(tuple(sample), 0.0))
    medians = {name: torch.tensor(list(own.values()) or [math.nan]).median() for name, own in longest.items()}
    return {name: float(middle) for name, middle in medians.items()}


def curves_of(
    table: Any, metric: str, made: PerImage, order: str | None, methods: Sequence[str]
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Ids of the images (n,), shares of units (T + 1,), and for each method its curves (n, T + 1).

    Args:
        table: An arrow table of curves; None if there is none.
        metric: Its name in the report.
        made: The metric.
        order: In which units go; None for the first that the metric reads.
        methods: Those to be read, as they are called in tables.
    """
    if not isinstance(made, CurveMetric):
        raise ArgumentError(f"Metric {metric!r} reads no curves.")
    order = made.orders[0] if order is None else order
    if order not in made.orders:
        raise ArgumentError(f"Metric {metric!r} reads the orders {', '.join(made.orders)}, but got {order!r}.")
    found = None if table is None else _gathered(table, metric, order, methods)
    if found is None:
        raise ArgumentError(
            f"There are no curves of {metric!r} in this report: they are in folders that evaluate(out=...) wrote, "
            "not in single files or merged reports, and curves=False leaves them out."
        )
    return found


def _gathered(
    table: Any, metric: str, order: str, methods: Sequence[str]
) -> tuple[Tensor, Tensor, dict[str, Tensor]] | None:
    import pyarrow.compute as pc

    chosen = pc.and_(pc.equal(table.column("metric"), metric), pc.equal(table.column("order"), order))
    there = pc.greater(pc.list_value_length(table.column("points")), 0)  # samples that could not be judged have none
    part = table.filter(pc.and_(chosen, there)).to_pydict()
    labels, at_name, at_sample, names, samples = _places(part)
    lengths = {len(points) for points in part["points"]}
    if len(lengths) > 1:
        listed = " and ".join(str(one - 1) for one in sorted(lengths))
        raise ArgumentError(
            f"Expected curves of {metric!r} on one grid, but there are some of {listed} steps: they are of different "
            "versions. Judge all images in a folder of their own."
        )
    shown = [name for name in methods if name in at_name]
    if not shown:
        return None
    length = lengths.pop()
    found = torch.full((len(at_name), len(at_sample), length), torch.nan)
    place = torch.tensor([at_name[labels[one]] for one in names]), torch.tensor([at_sample[one] for one in samples])
    found[place] = torch.tensor(part["points"])
    ids = torch.tensor([image for image, _ in at_sample])
    return ids, torch.linspace(0, 1, length, dtype=torch.float64), {name: found[at_name[name]] for name in shown}


def _places(part: dict[str, list[Any]]) -> tuple[Any, dict[str, int], dict[Any, int], list[Any], list[Any]]:
    """Labels of methods, where each of them and each sample has its place, and what every row is of."""
    names = list(zip(part["method"], part["options"], strict=True))
    # Samples of other data may have the same numbers.
    samples = list(zip(part["image"], part["input"], strict=True))
    labels = {one: label(*one) for one in dict.fromkeys(names)}
    return labels, _numbered(dict.fromkeys(labels.values())), _numbered(sorted(set(samples))), names, samples


def _numbered(kinds: Iterable[Any]) -> dict[Any, int]:
    return {one: k for k, one in enumerate(kinds)}


Row = Mapping[str, Any]
Sample = tuple[int, str]  # number and digest

_SAME, _NOTHING = 1e-3, 1e-6  # an image in another batch or on another device gives values that differ by rounding


def merged(reports: Sequence[Sequence[Row]]) -> list[dict[str, Any]]:
    """Rows of all reports, each once.

    A sample is known by its number and by its digest (input, label, mask and what else the data says of it): ties,
    boxes and noise are drawn by the number, and what was drawn in another way cannot be paired. Samples of other data
    are never paired, also where they have the same number: they stay samples of their own.

    Args:
        reports: Rows of each, with the columns of `mhex.judge.store`.
    """
    _check_runs(row for rows in reports for row in rows)
    _check_settings(row for rows in reports for row in rows)
    left = [(rows, {(row["image"], row["input"]) for row in rows}) for rows in reports]
    samples: set[Sample] = set()
    kept: dict[tuple[Any, ...], dict[str, Any]] = {}
    while left:
        # What has samples in common comes first, so that the order in which reports are given does not matter.
        rows, own = left.pop(next((k for k, (_, one) in enumerate(left) if one & samples), 0))
        if samples:
            _check_numbers(samples, own)
            _check_methods(kept.values(), rows, samples, own)
        samples |= own
        for row in rows:
            key = tuple(row[name] for name in ("image", "input", "method", "options", "metric", "column"))
            _check_value(kept.setdefault(key, dict(row)), row)
    return list(kept.values())


def _check_runs(rows: Iterable[Row]) -> None:
    """All rows are of one model, task, target and seed."""
    runs = [json.loads(told) for told in dict.fromkeys(row["run"] for row in rows)]
    for one in runs[1:]:
        differ = sorted(name for name in {*one, *runs[0]} if one.get(name) != runs[0].get(name))
        if differ:
            told = "; ".join(f"{name} {runs[0].get(name)} and {one.get(name)}" for name in differ)
            raise ArgumentError(f"Expected reports of one model, task, target and seed, but they differ: {told}.")


def _check_settings(rows: Iterable[Row]) -> None:
    """A metric of one name is measured in one way."""
    known: dict[str, tuple[Any, str]] = {}
    for name, settings, protocol in dict.fromkeys((row["metric"], row["settings"], row["protocol"]) for row in rows):
        told = (json.loads(settings), protocol)
        if known.setdefault(name, told) != told:
            raise ArgumentError(
                f"Expected {name!r} to be measured in one way, but its settings differ between the reports: "
                f"{known[name][1]}; and {protocol}. Leave it out of one of them with only(metrics=...)."
            )


def _check_numbers(known: set[Sample], own: set[Sample]) -> None:
    """Where both are of the same data, as what they share shows, a number must not stand for two samples."""
    common = known & own
    wrong = sorted({image for image, _ in known - common} & {image for image, _ in own - common})
    if common and wrong:
        raise ArgumentError(
            f"Expected the same samples in both reports, but {len(wrong)} of them differ, such as image {wrong[0]}, "
            "while others are the same. Input, label, mask and whatever else the data says of a sample must be equal: "
            "judge all methods on the same data."
        )


def _check_methods(kept: Iterable[Row], rows: Sequence[Row], known: set[Sample], own: set[Sample]) -> None:
    """Without a common sample, more samples of the same methods are welcome, and other methods cannot be compared."""
    if known & own:
        return
    same = {digest for _, digest in known} & {digest for _, digest in own}
    before, now = _methods(kept), _methods(rows)
    for metric in before.keys() & now.keys():
        if alone := sorted(before[metric] ^ now[metric]):
            why = (
                f"the {len(same)} that they share have other numbers, by which ties, boxes and noise are drawn"
                if same
                else "input, label, mask and whatever else the data says of a sample must be equal"
            )
            raise ArgumentError(
                f"Expected reports of the same samples, or of the same methods, but they have no sample in common, and "
                f"only one of them has {alone[0]!r} for {metric!r}: {why}. Judge all methods on the same data, in the "
                "same order."
            )


def _methods(rows: Iterable[Row]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for metric, name, options in dict.fromkeys((row["metric"], row["method"], row["options"]) for row in rows):
        found.setdefault(metric, set()).add(label(name, options))
    return found


def _check_value(kept: Row, row: Row) -> None:
    first, second = (math.nan if one["value"] is None else one["value"] for one in (kept, row))
    if math.isnan(first) and math.isnan(second):
        return
    if not math.isclose(first, second, rel_tol=_SAME, abs_tol=_NOTHING):
        raise ArgumentError(
            f"Expected one value of {row['metric']!r} ({row['column']}) for {label(row['method'], row['options'])!r} "
            f"on image {row['image']}, but the reports have {first:g} and {second:g}. They number samples differently, "
            "by which ties and boxes are drawn, or one of them is of another version."
        )
