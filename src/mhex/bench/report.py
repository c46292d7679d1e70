"""What an evaluation found: rows per image, and everything that follows from them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from torch import Tensor

from mhex._json import read_json
from mhex.bench import course, store
from mhex.bench.about import are_losses, read
from mhex.bench.cells import cells_of, compared, per_image
from mhex.bench.gathering import curves_of, numbers_of, presence_of
from mhex.bench.merging import merged
from mhex.bench.pairs import Pairs, check_names
from mhex.bench.plan import label, metric_of
from mhex.bench.tables import Cell, Grid, render
from mhex.errors import ArgumentError
from mhex.metrics._base import PerImage
from mhex.metrics.comparison import all_pairs
from mhex.metrics.ranking import Rank, ranking
from mhex.metrics.resampling import Summary

_FACTS = b"mhex"  # where a single file says what its rows do not


class Report:
    """Rows of an evaluation.

    Args:
        rows: An arrow table with the columns of `mhex.bench.store`; metrics are made again from what it says of them.
        curves: An arrow table of curves; None if there is none.
        lost: Samples that could not be judged, and why, by number.
        broken: A sentence on a run that was broken off; empty for one that came to its end.
    """

    def __init__(self, rows: Any, curves: Any = None, lost: Mapping[int, str] | None = None, broken: str = "") -> None:
        self.rows, self._curves = rows, curves
        self.lost, self.broken = dict(lost or {}), broken
        told = dict(zip(rows.column("metric").to_pylist(), rows.column("settings").to_pylist(), strict=True))
        self._metrics = {name: metric_of(settings) for name, settings in told.items()}
        self._values: dict[str, tuple[Tensor, dict[str, Tensor]]] = {}
        self._there: dict[str, dict[str, Tensor]] = {}
        self._cells: dict[tuple[Any, ...], list[Cell]] = {}  # tests of all pairs take long

    @property
    def remarks(self) -> list[str]:
        """Sentences on the run as a whole: that it was broken off, and which samples could not be judged."""
        return course.remarks(self.broken, self.lost)

    @property
    def methods(self) -> list[str]:
        """Methods as they are called in tables, in the order of the rows."""
        pairs = zip(self.rows.column("method").to_pylist(), self.rows.column("options").to_pylist(), strict=True)
        return list(dict.fromkeys(label(*pair) for pair in dict.fromkeys(pairs)))

    @property
    def metrics(self) -> list[str]:
        """Names of the metrics."""
        return list(self._metrics)

    def values(self, metric: str) -> tuple[Tensor, dict[str, Tensor]]:
        """Ids of the images (n,), and for each method its numbers (n, J); NaN where an image has none."""
        metric = self._named(metric)
        if metric not in self._values:
            self._values[metric] = numbers_of(self.rows, metric, self._metrics[metric].columns)
        return self._values[metric]

    def _named(self, metric: str) -> str:
        """The whole name of a metric; one with changed parts may be asked for without them, if it is the only one."""
        longer: list[str] = [name for name in self._metrics if re.split(r"[ :]", name)[0] == metric]
        if metric not in self._metrics and len(longer) == 1:
            return longer[0]
        check_names("metric", [metric], self._metrics)
        return metric

    def curves(self, metric: str, order: str | None = None) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Curves that a metric was read from, in single precision; NaN where an image has none.

        Args:
            metric: Its name in the report; one that reads a sweep.
            order: `"mif"` or `"lif"`, for metrics that read both; None for the first that the metric reads. Of
                insertion, points go from nothing put in to everything.

        Returns:
            Ids of the images (n,), shares of units removed or put in (T + 1,), and for each method its curves
            (n, T + 1).
        """
        return curves_of(self._curves, self._named(metric), self.metric(metric), order, self.methods)

    def has_curves(self, metric: str) -> bool:
        """Whether curves of a metric were kept."""
        return self._curves is not None and self._named(metric) in self._curves.column("metric").to_pylist()

    def metric(self, name: str) -> PerImage:
        """An empty torchmetrics object of a metric, with its protocol."""
        return self._metrics[self._named(name)]

    def protocol(self, metric: str) -> str:
        """How a metric was measured, as it stands in the rows."""
        names, protocols = self.rows.column("metric").to_pylist(), self.rows.column("protocol").to_pylist()
        found = {protocol for name, protocol in zip(names, protocols, strict=True) if name == metric}
        return "; ".join(sorted(found))

    def summary(
        self, resamples: int = 2000, confidence: float = 0.95, seed: int = 0, outputs: str = "all"
    ) -> list[Cell]:
        """A cell per method, metric and output: value, interval, images that count and those that do not.

        Args:
            resamples: Of the bootstrap.
            confidence: Of the intervals.
            seed: Of the bootstrap.
            outputs: `"first"` of each metric, or `"all"`.
        """
        if outputs not in ("first", "all"):
            raise ArgumentError(f"Expected outputs 'first' or 'all', but got {outputs!r}.")
        asked = (resamples, confidence, seed, outputs)
        if asked not in self._cells:
            drawn, whole = (resamples, confidence, seed), outputs == "all"
            self._cells[asked] = [
                cell
                for name, made in self._metrics.items()
                for cell in cells_of(
                    name, made, self.values(name)[1], self._judged(name), *drawn, len(made.outputs) if whole else 1
                )
            ]
        return list(self._cells[asked])

    def skipped(self) -> dict[str, dict[str, int]]:
        """For each method, and each metric, the images that it was judged on and that do not count."""
        found: dict[str, dict[str, int]] = {method: {} for method in self.methods}
        for name in self._metrics:
            there = self._judged(name)
            for method, numbers in self.values(name)[1].items():
                found[method][name] = int((there[method] & ~numbers.isfinite().all(1)).sum())
        return found

    def _judged(self, metric: str) -> dict[str, Tensor]:
        """For each method, whether it was judged on each image by a metric, bool (n,)."""
        if metric not in self._there:
            self._there[metric] = presence_of(self.rows, metric)
        return self._there[metric]

    def only(self, methods: Sequence[str] | None = None, metrics: Sequence[str] | None = None) -> Report:
        """The same with some methods, as they are called in tables, or some metrics alone."""
        check_names("method", methods or (), self.methods)
        check_names("metric", metrics or (), self.metrics)
        kept = [
            row
            for row in self.rows.to_pylist()
            if (methods is None or label(row["method"], row["options"]) in methods)
            and (metrics is None or row["metric"] in metrics)
        ]
        if not kept:
            raise ArgumentError("Expected methods and metrics of the report, but none is left.")
        return Report(store.as_table(kept), self._curves, self.lost, self.broken)

    def per_image(self, metric: str, output: int = 0) -> dict[str, Tensor]:
        """The value of each image by itself, (n,), for each method; NaN where there is none."""
        return per_image(self.metric(metric), self.values(metric)[1], output)

    def _compared(
        self, metric: str, methods: Sequence[str] | None, output: int
    ) -> tuple[list[str], Tensor, Summary | None]:
        """Methods, what is compared of them, (n, M) or (n, M, J), and how a value of the data set is made of it."""
        _, numbers = self.values(metric)  # refuses unknown metrics
        names = list(numbers) if methods is None else list(methods)
        check_names("method", names, numbers)
        return names, *compared(self.metric(metric), numbers, names, output)

    def compare(self, metric: str, methods: Sequence[str] | None = None, seed: int = 0, output: int = 0) -> Pairs:
        """Every pair of methods by one metric, each on the images that both have, corrected for all pairs.

        Args:
            metric: Its name in the report.
            methods: Only these, as they are called in tables.
            seed: Of the tests.
            output: Which number of the metric.

        Returns:
            Comparisons by two names, in either order.
        """
        names, values, summary = self._compared(metric, methods, output)
        if len(names) < 2:
            raise ArgumentError(
                f"Expected at least two methods to be compared, but got {names[0] if names else 'none'} alone; the "
                f"report has {', '.join(self.methods)}."
            )
        found = all_pairs(values, seed, summary=summary)
        return Pairs({(names[i], names[j]): pair for (i, j), pair in found.items()})

    def ranks(
        self,
        metric: str,
        methods: Sequence[str] | None = None,
        resamples: int = 2000,
        confidence: float = 0.95,
        seed: int = 0,
        output: int = 0,
    ) -> dict[str, Rank]:
        """Places by one metric with bootstrap intervals, on the images that all methods have; the best first.

        Args:
            metric: Its name in the report.
            methods: Only these, as they are called in tables; leave out those that have few images.
            resamples: Of the bootstrap.
            confidence: Of the intervals.
            seed: Of the bootstrap.
            output: Which number of the metric.
        """
        names, values, summary = self._compared(metric, methods, output)
        higher = self.metric(metric).better[output]
        if higher is None:
            raise ArgumentError(f"Neither high nor low is better for {metric!r}, so there are no ranks by it.")
        found = ranking(values, higher, resamples, confidence, seed, summary=summary)
        return dict(sorted(zip(names, found.methods, strict=True), key=lambda one: one[1].place))

    def table(self, form: str = "text", outputs: str = "first", resamples: int = 2000, width: int | None = None) -> str:
        """Methods by metrics, with intervals; see `mhex.bench.verdicts` for what is marked.

        Args:
            form: `"text"`, `"markdown"`, `"latex"` or `"html"`.
            outputs: `"first"` of each metric, or `"all"`.
            resamples: Of the bootstrap.
            width: Signs in a line of `"text"`; None for those of the terminal. Columns without room are put below.
        """
        cells = self.summary(resamples, outputs=outputs)
        notes = {name: self.protocol(name) for name in self._metrics}
        return render(Grid(self.methods, cells, notes, self.remarks), form, width)

    def to_html(self) -> str:
        """The table as a piece of HTML, all outputs."""
        return self.table("html", "all")

    def to_parquet(self, path: str | PathLike[str]) -> Path:
        """Write all rows to a file; curves stay behind."""
        facts = json.dumps({"lost": self.lost, "broken": self.broken})
        store.write(self.rows.replace_schema_metadata({_FACTS: facts}), Path(path))
        return Path(path)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Report:
        """Read a file that `to_parquet` wrote, or the folder of a run."""
        path = Path(path)
        rows = store.read(path)
        if path.is_dir():
            calls = read(path)
            lost, broken = course.lost_in(calls), course.broken_off(calls, rows)
            return cls(rows, store.read(path, store.CURVES), lost, broken)
        return cls(rows, None, *_facts((rows.schema.metadata or {}).get(_FACTS, b"{}"), path))

    def merge(self, *others: Report) -> Report:
        """One report of several: samples are paired by number and digest, and what disagrees is refused.

        Rows that are in more than one count once. More samples of the same methods are added; see `mhex.bench.merging`.
        """
        reports = (self, *others)
        lost = {number: reason for report in reports for number, reason in report.lost.items()}
        rows = store.as_table(merged([report.rows.to_pylist() for report in reports]))
        return Report(rows, None, lost, next((report.broken for report in reports if report.broken), ""))

    def __str__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        return self.to_html()

    def __repr__(self) -> str:
        return f"Report({len(self.methods)} methods, {len(self.metrics)} metrics, {self.rows.num_rows} rows)"


def _facts(text: bytes, path: Path) -> tuple[dict[int, str], str]:
    """Samples that were lost, and a sentence on a run that was broken off, from the header of a file of rows."""
    try:
        facts = read_json(text.decode())
    except ValueError as error:
        raise ArgumentError(f"Expected rows of mhex in {path.name!r}, but its header is damaged: {error}.") from error
    lost, broken = (facts.get("lost", {}), facts.get("broken", "")) if isinstance(facts, dict) else (facts, "")
    if not are_losses(lost) or not isinstance(broken, str):
        raise ArgumentError(f"Expected rows of mhex in {path.name!r}, but its header holds something else.")
    return {int(number): reason for number, reason in lost.items()}, broken
