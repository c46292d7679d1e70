"""A suite's result as a page in Markdown: our numbers beside those of papers, claims with their tests, and charts."""

import hashlib
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch
from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from matplotlib.figure import Figure

from mhex._files import write_text, writing
from mhex.judge.controls import is_control
from mhex.judge.page import curve_panels
from mhex.judge.report import Evaluation, Report
from mhex.judge.rows import explain_seconds
from mhex.judge.tables import DAGGER, Cell, Grid, render
from mhex.lab.config.suite import ClaimPart, PublishedPart
from mhex.lab.suites.stored import SuiteResult
from mhex.stats.comparison import Paired
from mhex.stats.correlation import rank_correlation, rank_correlation_p
from mhex.stats.simultaneous import holm
from mhex.viz import save_figure
from mhex.viz.charts import curve_figure, styles_of

_FEW = 3  # methods, below which an order says nothing
_COLUMNS = 4  # of numbers in one table: more do not fit beside each other on a page
_IMAGES = "images"  # the folder of charts beside a page
_LEVEL = 0.05  # of the tests of claims
_PRINTED = 0.001  # smaller p are printed as below it
_ZERO = re.compile(r"[0.± ]+")


def write_page(result: SuiteResult, path: Path) -> list[Path]:
    """Write the page of a suite, and its charts into the folder `images` beside it; give all files, the page first."""
    charts = suite_charts(result)
    with writing(path):
        (path.parent / (_IMAGES if charts else "")).mkdir(parents=True, exist_ok=True)
    files = [save_figure(chart, path.parent / chart_path(result, label)) for label, chart in charts.items()]
    write_text(suite_page(result, path.parent), path)  # the last, because it links the charts
    return [path, *files]


def suite_charts(result: SuiteResult) -> dict[str, Figure]:
    """Draw for each model with curves a figure of their means with bands; none where the suite asks for none."""
    charts: dict[str, Figure] = {}
    for label, report in result.reports.items():
        if chart_path(result, label):
            entry = Evaluation(label, report, {}, (), {})
            charts[label] = curve_figure(curve_panels(entry), styles_of(entry.methods, entry.controls), key=True)
    return charts


def chart_path(result: SuiteResult, label: str, folder: Path | None = None) -> str:
    """Where the chart of a model is, seen from the page; empty where the suite asks for none.

    It is empty, too, where there are no curves to draw it from, and no chart of an earlier call in the page's folder.
    """
    report, quick = result.reports[label], "-quick" if result.quick else ""
    path = f"{_IMAGES}/{result.suite.name}{quick}-{label}.svg"
    exists = folder is not None and (folder / path).is_file()
    return path if result.suite.charts and (exists or any(map(report.has_curves, report.metrics))) else ""


def suite_page(result: SuiteResult, folder: Path | None = None) -> str:
    """Write a suite's page for a folder; where the suite asks for charts, it links them as files in `images` there."""
    records = {label: result.record["models"][label] for label in result.reports}
    page = _template().render(result=result, records=records, numbers=fingerprint(result), folder=folder)
    return re.sub(r"\n{3,}", "\n\n", page).strip() + "\n"


def fingerprint(result: SuiteResult) -> str:
    """Name the numbers of a result: sixteen signs that change with any of them, as they stand in its tables.

    Numbers of which neither high nor low is better are left out. A suite's `reading_of` holds that of the numbers which
    its reading is of, so that a reading never stands above other numbers.
    """
    cells = [(label, cell) for label, report in result.reports.items() for cell in report.summary()]
    numbers = sorted(
        [label, cell.method, cell.column, cell.text.removesuffix(DAGGER)]
        for label, cell in cells
        if cell.higher is not None
    )
    return hashlib.sha256(json.dumps(numbers).encode()).hexdigest()[:16]


@cache
def _template() -> Template:
    loader = PackageLoader("mhex.lab.suites")
    environment = Environment(loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    for function in (beside, chart_path, check_claims, explain_seconds, is_control, tables):
        environment.globals[function.__name__] = function
    return environment.get_template("suite.md")


def tables(report: Report, cells: Sequence[Cell]) -> str:
    """Put the cells of a report's summary into tables of at most four columns, metrics in one piece where they fit.

    A column that is the same for every method, such as how often a model is not sure, becomes a line below the tables,
    unless it is 0. Remarks and protocols stand below all.
    """
    texts: dict[str, set[str]] = {}
    for cell in cells:
        if cell.higher is None:
            texts.setdefault(cell.column, set()).add(cell.text)
    constant = {column: values.pop() for column, values in texts.items() if len(values) == 1 < len(report.methods)}
    by_metric: dict[str, dict[str, None]] = {}
    for cell in cells:
        if cell.column not in constant:
            by_metric.setdefault(cell.metric, {})[cell.column] = None
    groups: list[list[str]] = []
    for columns in map(list, by_metric.values()):
        if groups and len(groups[-1]) + len(columns) <= _COLUMNS:
            groups[-1] += columns
        else:
            groups += [columns[at : at + _COLUMNS] for at in range(0, len(columns), _COLUMNS)]
    parts: list[str] = []
    remarks: dict[str, None] = {}
    for columns in groups:
        members = [cell for cell in cells if cell.column in columns]
        notes = {name: report.protocol(name) for name in dict.fromkeys(cell.metric for cell in members)}
        table, _, below = render(Grid(report.methods, members, notes), "markdown").strip().partition("\n\n")
        parts.append(table)
        remarks |= dict.fromkeys(below.splitlines())
    general = [line for line in remarks if not any(line.startswith(f"- {name}:") for name in by_metric)]
    specific = [line for line in remarks if line not in general]
    alike = [f"- {column}: {text} for all" for column, text in constant.items() if not _ZERO.fullmatch(text)]
    return "\n\n".join([*parts, "\n".join([*specific, *alike, *general])])


def beside(
    published: PublishedPart, cells: Sequence[Cell], seed: int
) -> tuple[list[str], list[str], dict[tuple[str, str], Cell], list[tuple[str, int, float, float]]]:
    """What our numbers and those of a paper have in common; names of columns hold the suite's seed where it is not 0.

    Gives the methods and the columns that both have, our cells by method and column, and, of each column with enough
    methods, their number, the rank correlation of the two orders and its p.
    """
    ours = {(cell.method, without_seed(cell.column, seed)): cell for cell in cells}
    methods = [name for name in published.values if any(method == name for method, _ in ours)]
    headings = dict.fromkeys(column for name in methods for column in published.values[name])
    columns = [name for name in headings if any(column == name for _, column in ours)]
    orders = []
    for column in columns:
        common = [name for name in methods if (name, column) in ours and column in published.values[name]]
        pairs = [(ours[name, column].value, float(published.values[name][column])) for name in common]
        pairs = [pair for pair in pairs if not math.isnan(pair[0])]
        if len(pairs) >= _FEW:
            sides = torch.tensor(pairs, dtype=torch.float64).mT
            rho = float(rank_correlation(*sides))
            if not math.isnan(rho):
                orders.append((column, len(pairs), rho, rank_correlation_p(*sides)))
    return methods, columns, ours, orders


@dataclass(frozen=True)
class Checked:
    """A pair of methods that a claim speaks of, tested."""

    claim: ClaimPart
    first: str  # the method that should be better
    second: str  # the one that should be worse
    pair: Paired  # of first less second
    adjusted: float  # p corrected (Holm) for all pairs of the claims on one model
    higher: bool  # whether higher is better

    @property
    def p_text(self) -> str:
        """The corrected p as it is printed: a bound, where no drawn flip reached the difference."""
        if self.adjusted < _PRINTED:
            return f"< {_PRINTED}"
        return f"{'at most ' if self.pair.at_floor else ''}{self.adjusted:.2g}"

    @property
    def result(self) -> str:
        """How the first method compares with the second."""
        if not self.adjusted < _LEVEL:
            return "not told apart"
        return "better" if (self.pair.difference > 0) is self.higher else "worse"


def check_claims(
    claims: Sequence[ClaimPart], label: str, report: Report, cells: Sequence[Cell], seed: int
) -> list[Checked]:
    """Test each pair of the claims for a model by flips of signs, on the cells of its report's summary.

    Pairs of methods that were not judged are passed over; names of columns hold the suite's seed where it is not 0.
    """
    by_column = {without_seed(cell.column, seed): cell for cell in cells}
    checks = []
    for claim in claims:
        cell = by_column.get(claim.column)
        if cell is None or cell.higher is None or (claim.models and label not in claim.models):
            continue
        output = report.metric(cell.metric).outputs.index(cell.output)
        for first in claim.better:
            for second in claim.than:
                if first in report.methods and second in report.methods:
                    pair = report.compare(cell.metric, [first, second], output=output)[first, second]
                    checks.append(Checked(claim, first, second, pair, math.nan, cell.higher))
    adjusted = holm([check.pair.p for check in checks])
    return [replace(check, adjusted=p) for check, p in zip(checks, adjusted, strict=True)]


def without_seed(column: str, seed: int) -> str:
    """A column as it is called where the seed is 0, which names it for all seeds."""
    return column.replace(f"(seed={seed}, ", "(").replace(f" (seed={seed})", "")
