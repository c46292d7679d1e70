"""Rows as tensors: numbers and curves of every method on the same images."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from mhex.bench.plan import label
from mhex.errors import ArgumentError
from mhex.metrics._base import PerImage
from mhex.metrics._curve import CurveMetric


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
    """Numbers of the samples that have rows without having been judged, see `mhex.bench.rows.empty_rows`."""
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
