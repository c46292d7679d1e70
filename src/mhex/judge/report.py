"""Evaluations on disk: which folders hold some, and what is known of each."""

from __future__ import annotations

import json
import platform
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mhex._files import read_json, write_text
from mhex.errors import ArgumentError
from mhex.explanation import Explanation
from mhex.judge import store
from mhex.judge import store as course
from mhex.judge.controls import is_control
from mhex.judge.plan import Pairs, check_names, label, metric_of
from mhex.judge.rows import curves_of, explain_seconds, merged, numbers_of, presence_of
from mhex.judge.saved_maps import kept
from mhex.judge.store import numbered
from mhex.judge.tables import Cell, Grid, cells_of, compared, per_image, render
from mhex.metrics.base import PerImage
from mhex.stats.comparison import Rank, all_pairs, ranking
from mhex.stats.intervals import Summary

_NAME = "about.json"
_PACKAGES = ("mhex", "numpy", "timm", "transformers")


def note(
    folder: Path,
    told: Mapping[str, Any],
    samples: int | None = None,
    done: int | None = None,
    lost: Mapping[int, str] | None = None,
) -> None:
    """Write down a call when it begins, and once more when it is done; the same call is written down once.

    Args:
        folder: Of the rows.
        told: What is known of the call, as JSON can hold it.
        samples: How many there are to judge; None if that is not known.
        done: At the end of the call, how many samples it went through. A call without it was broken off, or still runs.
        lost: Samples that could not be judged, and why.
    """
    known = read(folder)
    made = {**told, "command": command(), "versions": versions(), "samples": samples}
    entry = json.loads(json.dumps(made, default=str))
    place = next((k for k, call in enumerate(known) if entry.items() <= call.items()), len(known))
    if place < len(known) and done is None:
        return
    lost_ids = {str(number): reason for number, reason in sorted((lost or {}).items())}
    known[place : place + 1] = [{**entry, "done": done, "lost": lost_ids}]
    write_text(json.dumps(known, indent=2), folder / _NAME)


def read(folder: Path) -> list[dict[str, Any]]:
    """The calls that made the rows of a folder, in their order; empty if none was written down."""
    path = folder / _NAME
    if not path.exists():
        return []
    try:
        found = read_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ArgumentError(f"Expected the calls of a run in {str(path)!r}, but it is no JSON; delete it.") from error
    if not isinstance(found, list) or not all(map(_is_call, found)):
        raise ArgumentError(f"Expected the calls of a run in {str(path)!r}, but it holds something else; delete it.")
    return found


def _is_call(entry: Any) -> bool:
    """Whether an entry of the file is the description of a call that `note` writes."""
    if not isinstance(entry, dict):
        return False
    names = [entry.get(key, []) for key in ("methods", "metrics")]
    counts = [entry.get(key) for key in ("samples", "done")]
    return (
        all(isinstance(group, list) and all(isinstance(name, str) for name in group) for group in names)
        and all(count is None or type(count) is int for count in counts)
        and are_losses(entry.get("lost") or {})
    )


def are_losses(lost: Any) -> bool:
    """Whether something is numbers of samples, as JSON has them, and why they were lost."""
    return isinstance(lost, dict) and all(
        number.isdecimal() and isinstance(reason, str) for number, reason in lost.items()
    )


def versions() -> dict[str, str]:
    """Of Python and of the packages that numbers depend on, as far as they are installed."""
    found = {"python": platform.python_version(), "torch": str(torch.__version__)}  # with its build
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def command() -> str:
    """The command line of this program, without the folder of the program; empty where there is none."""
    first = Path(sys.argv[0]).name if sys.argv else ""
    if first in ("", "-c", "-m"):
        return ""
    return shlex.join([first, *sys.argv[1:]])


_FACTS = b"mhex"  # where a single file says what its rows do not


class Report:
    """Rows of an evaluation.

    Args:
        rows: An arrow table with the columns of `mhex.judge.store`; metrics are made again from what it says of them.
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
        return dict(sorted(zip(names, found, strict=True), key=lambda one: one[1].place))

    def table(self, form: str = "text", outputs: str = "first", resamples: int = 2000, width: int | None = None) -> str:
        """Methods by metrics, with intervals; see `mhex.judge.tables` for what is marked.

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

        Rows that are in more than one count once. More samples of the same methods are added; see `mhex.judge.rows`.
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


@dataclass(frozen=True)
class Evaluation:
    """An evaluation that a folder holds.

    Attributes:
        name: Of its folder.
        report: Its rows and curves.
        told: What the rows are of: fingerprints of models, target, task and seed.
        calls: That made it, with versions and commands; empty if none was written down.
        drawn: Explanations of kept samples, by number and method.
    """

    name: str
    report: Report
    told: Mapping[str, Any]
    calls: Sequence[Mapping[str, Any]]
    drawn: Mapping[int, Mapping[str, Explanation]]

    @property
    def images(self) -> int:
        """Samples that were judged."""
        rows = self.report.rows
        return len(set(zip(rows.column("image").to_pylist(), rows.column("input").to_pylist(), strict=True)))

    @cached_property
    def methods(self) -> list[str]:
        """Methods that are no controls."""
        return [name for name in self.report.methods if not is_control(name)]

    @cached_property
    def controls(self) -> list[str]:
        """Control maps."""
        return [name for name in self.report.methods if is_control(name)]

    def seconds(self) -> dict[str, float]:
        """What an explanation took, by method; controls are left out."""
        return {name: took for name, took in explain_seconds(self.report.rows).items() if not is_control(name)}


def evaluations(folder: Path) -> list[Evaluation]:
    """All evaluations in a folder and its subfolders, by name.

    Args:
        folder: That `mhex.evaluate` was given as `out=`, or one that holds such folders.
    """
    if not folder.is_dir():
        raise ArgumentError(f"Expected a folder with evaluations, but there is none at {str(folder)!r}.")
    inside = [folder, *sorted(path for path in folder.rglob("*") if path.is_dir())]
    found = [_evaluation(path, folder) for path in inside if numbered(path)]
    if not found:
        raise ArgumentError(
            f"Expected an evaluation in {str(folder)!r} or in a folder below, but there are no rows (part-*.parquet); "
            "make one with mhex.evaluate(..., out=FOLDER)."
        )
    return found


def _evaluation(path: Path, top: Path) -> Evaluation:
    name = path.resolve().name if path == top else path.relative_to(top).as_posix()
    report = Report.load(path)
    if not report.rows.num_rows:
        raise ArgumentError(f"Expected rows in {str(path)!r}, but its files are empty; run the evaluation again.")
    told = json.loads(report.rows.column("run")[0].as_py())
    return Evaluation(name, report, told, read(path), kept(path))
