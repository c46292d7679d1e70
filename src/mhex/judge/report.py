"""Reports: the rows of an evaluation, the calls that made them, and the folders that hold them."""

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
from itertools import product
from os import PathLike
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BaseModel, Field, TypeAdapter, ValidationError
from torch import Tensor

from mhex._files import read_json, write_text
from mhex._settings import check_that
from mhex.errors import ArgumentError
from mhex.explanation import Explanation
from mhex.judge import store
from mhex.judge.controls import is_control
from mhex.judge.plan import check_names, metric_from
from mhex.judge.rows import curves_of, explain_seconds, merged, numbers_of
from mhex.judge.store import Call
from mhex.judge.tables import Cell, Grid, cells_of, compared, per_image, render
from mhex.metrics.base import PerImage
from mhex.stats.comparison import Paired, Rank, all_pairs, ranking
from mhex.stats.intervals import Summary

_CALLS = "about.json"
_PACKAGES = ("mhex", "numpy", "timm", "transformers")
_FACTS = b"mhex"  # where a single file says what its rows do not


def write_call(
    folder: Path,
    call: Call,
    samples: int | None = None,
    done: int | None = None,
    lost: Mapping[int, str] | None = None,
    cost: Mapping[str, int] | None = None,
) -> None:
    """Write down a call when it begins, and once more when it is done; the same call is written down once.

    `samples` are to be judged, and `done` were gone through at the end: a call without it was broken off, or runs.
    Costs of the same call are added up.
    """
    calls = read_calls(folder)
    entry = {**call, "command": command(), "versions": versions(), "samples": samples}
    entry = json.loads(json.dumps(entry, default=str))
    place = next((k for k, before in enumerate(calls) if entry.items() <= before.items()), len(calls))
    if place < len(calls) and done is None:
        return
    reasons = {str(number): reason for number, reason in sorted((lost or {}).items())}
    total = store.added([cost or {}, *(before.get("cost") or {} for before in calls[place : place + 1])])
    calls[place : place + 1] = [{**entry, "done": done, "lost": reasons, "cost": total}]
    write_text(json.dumps(calls, indent=2), folder / _CALLS)


def read_calls(folder: Path) -> list[dict[str, Any]]:
    """The calls that made the rows of a folder, in their order; empty if none was written down."""
    path = folder / _CALLS
    if not path.exists():
        return []
    try:
        calls: list[dict[str, Any]] = read_json(path.read_text(encoding="utf-8"))
        _CALL_FACTS.validate_python(calls)
    except ValueError as error:
        kind = "holds something else" if isinstance(error, ValidationError) else "is no JSON"
        raise ArgumentError(f"Expected the calls of a run in {str(path)!r}, but it {kind}; delete it.") from error
    return calls


class _Facts(BaseModel, strict=True):
    """What the header of a file says beside its rows."""

    lost: dict[Annotated[str, Field(pattern=r"^\d+$")], str] | None = None  # why samples were lost, by number
    broken: str = ""  # a sentence on a run that was broken off
    cost: dict[str, Annotated[int, Field(ge=0)]] | None = None  # see `Report`


class _CallFacts(_Facts):
    """What `write_call` writes, as far as it is read again."""

    methods: list[str] = []
    metrics: list[str] = []
    samples: int | None = None
    done: int | None = None


_CALL_FACTS = TypeAdapter(list[_CallFacts])


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that numbers depend on, as far as they are installed."""
    numbers = {"python": platform.python_version(), "torch": str(torch.__version__)}  # with its build
    for name in _PACKAGES:
        try:
            numbers[name] = version(name)
        except PackageNotFoundError:
            continue
    return numbers


def command() -> str:
    """The command line of this program, without the folder of the program; empty where there is none."""
    first = Path(sys.argv[0]).name if sys.argv else ""
    return "" if first in ("", "-c", "-m") else shlex.join([first, *sys.argv[1:]])


class Pairs(dict[tuple[str, str], Paired]):
    """Comparisons by the names of two methods; asked for in the other order, a pair is turned round."""

    def __missing__(self, pair: tuple[str, str]) -> Paired:
        two = isinstance(pair, tuple) and len(pair) == 2 and pair[0] != pair[1]
        check_that(two, "the names of two methods", repr(pair))
        check_names("method", pair, dict.fromkeys(name for names in self for name in names))
        return self[pair[1], pair[0]].reversed


class Report:
    """Rows of an evaluation.

    Args:
        rows: An arrow table with the columns of `mhex.judge.store`; metrics are made again from what it says of them.
        curves: An arrow table of curves; None if there is none.
        lost: Samples that could not be judged, and why, by number.
        broken: A sentence on a run that was broken off; empty for one that came to its end.
        cost: What metrics cost: changed samples that the model was run on (`"passes"`), and those that it was not run
            on because another method or metric had the same (`"saved"`); empty if it is not known.
    """

    def __init__(
        self,
        rows: Any,
        curves: Any = None,
        lost: Mapping[int, str] | None = None,
        broken: str = "",
        cost: Mapping[str, int] | None = None,
    ) -> None:
        self.rows, self._curves = rows, store.as_table([], store.CURVES) if curves is None else curves
        self.lost, self.broken, self.cost = dict(lost or {}), broken, dict(cost or {})
        settings = dict(store.records(rows, "metric", "settings"))
        self._metrics = {name: metric_from(text) for name, text in settings.items()}
        self._numbers: dict[str, tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]] = {}
        self._cells: dict[tuple[Any, ...], list[Cell]] = {}  # tests of all pairs take long

    @property
    def remarks(self) -> list[str]:
        """Sentences on the run as a whole: that it was broken off, and which samples could not be judged."""
        return store.remarks(self.broken, self.lost)

    @property
    def methods(self) -> list[str]:
        """Methods as they are called in tables, in the order of the rows."""
        return list(dict.fromkeys(store.labels_of(self.rows)))

    @property
    def metrics(self) -> list[str]:
        """Names of the metrics."""
        return list(self._metrics)

    def values(self, metric: str) -> tuple[Tensor, dict[str, Tensor]]:
        """Ids of the images (n,), and for each method its numbers (n, J); NaN where an image has none."""
        return self._judged(self._full_name(metric))[:2]

    def _judged(self, metric: str) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
        """The same, and for each method whether it was judged on each image, bool (n,)."""
        if metric not in self._numbers:
            self._numbers[metric] = numbers_of(self.rows, metric, self._metrics[metric].columns)
        return self._numbers[metric]

    def _full_name(self, metric: str) -> str:
        """The full name of a metric; one with changed parts may be asked for without them, if it is the only one."""
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
        return curves_of(self._curves, self._full_name(metric), self.metric(metric), order, self.methods)

    def has_curves(self, metric: str) -> bool:
        """Whether the report has curves of a metric."""
        return self._full_name(metric) in self._curves.column("metric").to_pylist()

    def metric(self, name: str) -> PerImage:
        """An empty torchmetrics object of a metric, with its protocol."""
        return self._metrics[self._full_name(name)]

    def protocol(self, metric: str) -> str:
        """How a metric was measured, as it stands in the rows."""
        pairs = store.records(self.rows, "metric", "protocol")
        return "; ".join(sorted({text for name, text in pairs if name == metric}))

    def summary(
        self, resamples: int = 2000, confidence: float = 0.95, seed: int = 0, outputs: str = "all"
    ) -> list[Cell]:
        """A cell per method, metric and output: value, interval, images that count and those that do not.

        Args:
            resamples: Resamples of the bootstrap.
            confidence: Confidence of the intervals.
            seed: Seed of the bootstrap.
            outputs: `"first"` of each metric, or `"all"`.
        """
        check_that(outputs in ("first", "all"), "outputs 'first' or 'all'", repr(outputs))
        key = (resamples, confidence, seed, outputs)
        if key not in self._cells:
            self._cells[key] = []
            for name, metric in self._metrics.items():
                count = len(metric.outputs) if outputs == "all" else 1
                _, numbers, presence = self._judged(name)
                self._cells[key] += cells_of(name, metric, numbers, presence, resamples, confidence, seed, count)
        return list(self._cells[key])

    def skipped(self) -> dict[str, dict[str, int]]:
        """For each method, and each metric, the images that it was judged on and that do not count."""
        counts: dict[str, dict[str, int]] = {method: {} for method in self.methods}
        for name in self._metrics:
            _, numbers, presence = self._judged(name)
            for method, rows in numbers.items():
                counts[method][name] = int((presence[method] & ~rows.isfinite().all(1)).sum())
        return counts

    def only(self, methods: str | Sequence[str] | None = None, metrics: str | Sequence[str] | None = None) -> Report:
        """A report with some methods, as they are called in tables, or some metrics alone."""
        methods = check_names("method", methods, self.methods)
        metrics = check_names("metric", metrics, self.metrics)
        names = zip(store.labels_of(self.rows), self.rows.column("metric").to_pylist(), strict=True)
        pairs = set(product(methods, metrics))
        rows = self.rows.take([place for place, pair in enumerate(names) if pair in pairs])
        check_that(rows.num_rows > 0, "methods and metrics of the report", "none of them")
        return Report(rows, self._curves, self.lost, self.broken)

    def per_image(self, metric: str, output: int = 0) -> dict[str, Tensor]:
        """The value of each image by itself, (n,), for each method; NaN where there is none."""
        return per_image(self.metric(metric), self.values(metric)[1], output)

    def _compared(
        self, metric: str, methods: str | Sequence[str] | None, output: int
    ) -> tuple[list[str], Tensor, Summary | None]:
        """Methods, what is compared of them, (n, M) or (n, M, J), and how a value of the data set is made of it."""
        _, numbers = self.values(metric)  # refuses unknown metrics
        names = check_names("method", methods, numbers)
        return names, *compared(self.metric(metric), numbers, names, output)

    def compare(self, metric: str, methods: str | Sequence[str] | None = None, seed: int = 0, output: int = 0) -> Pairs:
        """Every pair of methods by one metric, each on the images that both have, corrected for all pairs.

        Args:
            metric: Its name in the report.
            methods: Only these, as they are called in tables.
            seed: Seed of the tests.
            output: Which number of the metric.

        Returns:
            Comparisons by two names, in either order.
        """
        names, values, summary = self._compared(metric, methods, output)
        actual, advice = f"{names[0] if names else 'none'} alone", f"; the report has {', '.join(self.methods)}"
        check_that(len(names) > 1, "at least two methods to be compared", actual, advice)
        pairs = all_pairs(values, seed, summary=summary)
        return Pairs({(names[i], names[j]): pair for (i, j), pair in pairs.items()})

    def ranks(
        self,
        metric: str,
        methods: str | Sequence[str] | None = None,
        resamples: int = 2000,
        confidence: float = 0.95,
        seed: int = 0,
        output: int = 0,
    ) -> dict[str, Rank]:
        """Places by one metric with bootstrap intervals, on the images that all methods have; the best first.

        Args:
            metric: Its name in the report.
            methods: Only these, as they are called in tables; leave out those that have few images.
            resamples: Resamples of the bootstrap.
            confidence: Confidence of the intervals.
            seed: Seed of the bootstrap.
            output: Which number of the metric.
        """
        names, values, summary = self._compared(metric, methods, output)
        higher = self.metric(metric).better[output]
        if higher is None:
            raise ArgumentError(f"Neither high nor low is better for {metric!r}, so there are no ranks by it.")
        ranks = ranking(values, higher, resamples, confidence, seed, summary=summary)
        return dict(sorted(zip(names, ranks, strict=True), key=lambda pair: pair[1].place))

    def table(self, form: str = "text", outputs: str = "first", resamples: int = 2000, width: int | None = None) -> str:
        """Methods by metrics, with intervals; see `mhex.judge.tables` for what is marked.

        Args:
            form: `"text"`, `"markdown"`, `"latex"` or `"html"`.
            outputs: `"first"` of each metric, or `"all"`.
            resamples: Resamples of the bootstrap.
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
        facts = json.dumps({"lost": self.lost, "broken": self.broken, "cost": self.cost})
        store.write(self.rows.replace_schema_metadata({_FACTS: facts}), Path(path))
        return Path(path)

    def save(self, folder: str | PathLike[str], call: Call | None = None) -> Path:
        """Write rows and curves to a folder, as `mhex.evaluate(out=...)` does; pictures are not in a report.

        Args:
            folder: A folder without rows; it is made if it is not there.
            call: What is known of the call that made the report; None for its methods and metrics alone.
        """
        folder = Path(folder)
        empty = not folder.is_dir() or not store.numbered(folder)
        check_that(empty, "a folder without rows", repr(str(folder)), ", which has some; choose another one")
        for kind, table in ((store.ROWS, self.rows), (store.CURVES, self._curves)):
            if table.num_rows:
                store.write(table, folder / f"{kind.name}-000000.parquet")
        if self.rows.num_rows:
            write_text(self.rows.column("run")[0].as_py(), folder / "run.json")
        samples = None if self.broken else len({*self.rows.column("image").to_pylist(), *self.lost})
        call = call or {"methods": self.methods, "metrics": self.metrics}
        write_call(folder, call, done=samples, lost=self.lost, cost=self.cost)
        return folder

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Report:
        """Read a file that `to_parquet` wrote, or the folder of a run."""
        path = Path(path)
        rows = store.read(path)
        if path.is_dir():
            calls = read_calls(path)
            losses = {int(number): reason for call in calls for number, reason in (call.get("lost") or {}).items()}
            cost = store.added(call.get("cost") or {} for call in calls)
            return cls(rows, store.read(path, store.CURVES), losses, store.broken_off(calls, rows), cost)
        try:
            facts = _Facts.model_validate(read_json((rows.schema.metadata or {}).get(_FACTS, b"{}").decode()))
        except ValueError as error:
            why = "holds something else" if isinstance(error, ValidationError) else f"is damaged: {error}"
            raise ArgumentError(f"Expected rows of mhex in {path.name!r}, but its header {why}.") from error
        losses = {int(number): reason for number, reason in (facts.lost or {}).items()}
        return cls(rows, None, losses, facts.broken, facts.cost)

    def merge(self, *reports: Report) -> Report:
        """One report of several: samples are paired by number and digest, and what disagrees is refused.

        Rows that are in more than one count once. More samples of the same methods are added; see `mhex.judge.rows`.
        """
        reports = (self, *reports)
        losses = {number: reason for report in reports for number, reason in report.lost.items()}
        rows = store.as_table(merged([report.rows.to_pylist() for report in reports]))
        broken = next((report.broken for report in reports if report.broken), "")
        return Report(rows, None, losses, broken, store.added(report.cost for report in reports))

    def __str__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        return self.to_html()

    def __repr__(self) -> str:
        return f"Report({len(self.methods)} methods, {len(self.metrics)} metrics, {self.rows.num_rows} rows)"


@dataclass(frozen=True)
class Evaluation:
    """An evaluation that a folder holds."""

    name: str  # name of its folder
    report: Report  # its rows and curves
    run: Mapping[str, Any]  # what the rows are of: fingerprints of models, target, task and seed
    calls: Sequence[Call]  # the calls that made it, with versions and commands; empty if none was written down
    drawn: Mapping[int, Mapping[str, Explanation]]  # explanations of saved samples, by number and method

    @property
    def images(self) -> int:
        """Number of samples that were judged."""
        return len(set(store.records(self.report.rows, "image", "input")))

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
    """All evaluations, by name, in a folder that `mhex.evaluate` was given as `out=`, and in its subfolders."""
    check_that(folder.is_dir(), f"a folder with evaluations at {str(folder)!r}", "none")
    entries = []
    for path in [folder, *sorted(path for path in folder.rglob("*") if path.is_dir())]:
        if not store.numbered(path):
            continue
        report = Report.load(path)
        advice = "; run the evaluation again"
        check_that(report.rows.num_rows > 0, f"rows in {str(path)!r}", "empty files", advice)
        name = path.resolve().name if path == folder else path.relative_to(folder).as_posix()
        run = json.loads(report.rows.column("run")[0].as_py())
        explanations = store.explanations_from(store.read(path, store.PHOTOS), store.read(path, store.MAPS))
        entries.append(Evaluation(name, report, run, read_calls(path), explanations))
    advice = "; make one with mhex.evaluate(..., out=FOLDER)"
    check_that(bool(entries), f"an evaluation in or below {str(folder)!r}", "no rows (part-*.parquet)", advice)
    return entries
