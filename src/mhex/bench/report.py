"""What an evaluation found: rows per image, and everything that follows from them."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mhex.bench import store
from mhex.bench.plan import label, metric_of
from mhex.bench.tables import Cell, Grid, render
from mhex.errors import ArgumentError, unknown_name
from mhex.metrics.comparison import Paired, all_pairs
from mhex.metrics.marking import marks
from mhex.metrics.resampling import bootstrap


class Report:
    """Rows of an evaluation.

    Args:
        rows: An arrow table with the columns of `mhex.bench.store`; metrics are made again from what it says of them.
    """

    def __init__(self, rows: Any) -> None:
        self.rows = rows
        told = dict(zip(rows.column("metric").to_pylist(), rows.column("settings").to_pylist(), strict=True))
        self._metrics = {name: metric_of(settings) for name, settings in told.items()}
        self._values: dict[str, tuple[Tensor, dict[str, Tensor]]] = {}

    @property
    def methods(self) -> list[str]:
        """Methods as they are called in tables, in the order of the rows."""
        pairs = zip(self.rows.column("method").to_pylist(), self.rows.column("options").to_pylist(), strict=True)
        return list(dict.fromkeys(label(name, options) for name, options in pairs))

    @property
    def metrics(self) -> list[str]:
        """Names of the metrics."""
        return list(self._metrics)

    def values(self, metric: str) -> tuple[Tensor, dict[str, Tensor]]:
        """Ids of the images (n,), and for each method its numbers (n, J); NaN where an image has none."""
        if metric not in self._metrics:
            raise unknown_name("metric", metric, self._metrics)
        if metric not in self._values:
            self._values[metric] = self._gathered(metric)
        return self._values[metric]

    def _gathered(self, metric: str) -> tuple[Tensor, dict[str, Tensor]]:
        import pyarrow.compute as pc

        part = self.rows.filter(pc.equal(self.rows.column("metric"), metric)).to_pydict()
        columns = self._metrics[metric].columns
        ids = sorted(set(part["image"]))
        place = {image: k for k, image in enumerate(ids)}
        labels = [label(name, options) for name, options in zip(part["method"], part["options"], strict=True)]
        found = {
            name: torch.full((len(ids), len(columns)), torch.nan, dtype=torch.float64) for name in dict.fromkeys(labels)
        }
        for name, image, column, value in zip(labels, part["image"], part["column"], part["value"], strict=True):
            found[name][place[image], columns.index(column)] = float("nan") if value is None else value
        return torch.tensor(ids), found

    def protocol(self, metric: str) -> str:
        """How a metric was measured, as it stands in the rows."""
        names, protocols = self.rows.column("metric").to_pylist(), self.rows.column("protocol").to_pylist()
        found = {protocol for name, protocol in zip(names, protocols, strict=True) if name == metric}
        return "; ".join(sorted(found))

    def summary(self, resamples: int = 2000, confidence: float = 0.95, seed: int = 0) -> list[Cell]:
        """A cell per method, metric and output: value, interval, images that count and those that do not."""
        cells: list[Cell] = []
        for name, metric in self._metrics.items():
            _, rows = self.values(name)
            for k, output in enumerate(metric.outputs):
                best = self._marked(name, k)
                for method, numbers in rows.items():
                    counted = numbers[numbers.isfinite().all(1)]
                    value = low = high = float("nan")
                    if len(counted):
                        value = float(metric.summary(counted)[k])
                        ends = bootstrap(counted, metric.summary, resamples, confidence, seed)
                        low, high = float(ends.low[k]), float(ends.high[k])
                    skipped = len(numbers) - len(counted)
                    cells.append(
                        Cell(
                            method,
                            name,
                            output,
                            value,
                            low,
                            high,
                            len(counted),
                            skipped,
                            method in best,
                            metric.better[k],
                        )
                    )
        return cells

    def only(self, methods: Sequence[str] | None = None, metrics: Sequence[str] | None = None) -> Report:
        """The same with some methods, as they are called in tables, or some metrics alone."""
        rows = self.rows.to_pylist()
        kept = [
            row
            for row in rows
            if (methods is None or label(row["method"], row["options"]) in methods)
            and (metrics is None or row["metric"] in metrics)
        ]
        if not kept:
            raise ArgumentError("Expected methods and metrics of the report, but none is left.")
        return Report(store.as_table(kept))

    def per_image(self, metric: str, output: int = 0) -> dict[str, Tensor]:
        """The value of each image by itself, (n,), for each method; NaN where there is none."""
        _, rows = self.values(metric)
        made = self._metrics[metric]
        return {name: made.summary(numbers[:, None, :])[..., output] for name, numbers in rows.items()}

    def _marked(self, metric: str, output: int) -> set[str]:
        """The best method and those that are not shown to be worse."""
        made = self._metrics[metric]
        higher = made.better[output]
        if higher is None:
            return set()
        if made.additive:
            values = self.per_image(metric, output)
            found = marks(torch.stack(list(values.values()), 1), higher)
        else:  # such as the ratio of sums over all images
            _, values = self.values(metric)
            table = torch.stack(list(values.values()), 1)  # (n, M, J)
            found = marks(table, higher, summary=lambda rows: made.summary(rows)[..., output : output + 1])
        return {name for name, flag in zip(values, found.marked, strict=True) if flag}

    def compare(
        self, metric: str, methods: Sequence[str] | None = None, seed: int = 0
    ) -> dict[tuple[str, str], Paired]:
        """Every pair of methods by one metric, on the images that count for all of them, corrected for all pairs.

        Args:
            metric: Its name in the report.
            methods: Only these, as they are called in tables.
            seed: Of the tests.
        """
        values = self.per_image(metric)
        names = list(values) if methods is None else list(methods)
        for name in names:
            if name not in values:
                raise unknown_name("method", name, values)
        found = all_pairs(torch.stack([values[name] for name in names], 1), seed)
        return {(names[i], names[j]): pair for (i, j), pair in found.items()}

    def table(self, form: str = "text", outputs: str = "first", resamples: int = 2000) -> str:
        """Methods by metrics, with intervals; the best and all that are not shown to be worse are marked.

        Args:
            form: `"text"`, `"markdown"`, `"latex"` or `"html"`.
            outputs: `"first"` of each metric, or `"all"`.
            resamples: Of the bootstrap.
        """
        if outputs not in ("first", "all"):
            raise ArgumentError(f"Expected outputs 'first' or 'all', but got {outputs!r}.")
        cells = self.summary(resamples)
        if outputs == "first":
            cells = [cell for cell in cells if cell.output == self._metrics[cell.metric].outputs[0]]
        notes = {name: self.protocol(name) for name in self._metrics}
        return render(Grid(self.methods, cells, notes), form)

    def to_html(self) -> str:
        """The table as a piece of HTML, all outputs."""
        return self.table("html", "all")

    def to_parquet(self, path: str | PathLike[str]) -> Path:
        """Write all rows to a file."""
        store.write(self.rows, Path(path))
        return Path(path)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Report:
        """Read a file that `to_parquet` wrote, or the folder of a run."""
        return cls(store.read(Path(path)))

    def merge(self, *others: Report) -> Report:
        """One report of several; a row that is in more than one counts once, the first time."""
        import pyarrow as pa

        rows, seen = [], set()
        for row in pa.concat_tables([self.rows, *(other.rows for other in others)]).to_pylist():
            key = tuple(row[name] for name in ("image", "method", "options", "metric", "protocol", "column"))
            if key not in seen:
                seen.add(key)
                rows.append(row)
        return Report(store.as_table(rows))

    def __str__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        return self.to_html()

    def __repr__(self) -> str:
        return f"Report({len(self.methods)} methods, {len(self.metrics)} metrics, {self.rows.num_rows} rows)"
