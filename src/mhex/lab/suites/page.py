"""A suite's result as a page in Markdown: our numbers beside those of papers, tested claims, and charts."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from mhex._files import write_text, writing
from mhex.judge.controls import is_control
from mhex.judge.page import curve_panels
from mhex.judge.report import Evaluation, Report
from mhex.judge.rows import explain_seconds
from mhex.judge.tables import Cell, Grid, render
from mhex.lab.config.suite import PublishedPart
from mhex.lab.suites.claims import check_claims, claims_table, markdown_table, without_seed
from mhex.lab.suites.stored import SuiteResult
from mhex.stats.correlation import rank_correlation
from mhex.viz import save_figure
from mhex.viz.charts import curve_figure, styles_of

_FEW = 3  # methods, below which an order says nothing
_OUR_COLUMNS = 2  # of ours in one table; each has a published one beside it
_COLUMNS = 4  # of numbers in one table: more do not fit beside each other on a page
_IMAGES = "images"  # the folder of charts beside a page
_ZERO = re.compile(r"[0.± ]+")


def write_page(result: SuiteResult, path: Path) -> list[Path]:
    """Write the page, and its charts into the folder `images` beside it.

    Args:
        result: Of `run_suite` or `stored_result`.
        path: Of the page.

    Returns:
        All files, the page first.
    """
    charts = suite_charts(result)
    with writing(path):
        (path.parent / _IMAGES if charts else path.parent).mkdir(parents=True, exist_ok=True)
    files = [save_figure(chart, path.parent / _chart_path(result, label)) for label, chart in charts.items()]
    write_text(suite_page(result), path)  # the last, because it links the charts
    return [path, *files]


def suite_charts(result: SuiteResult) -> dict[str, Figure]:
    """For each model with curves a figure of their means with bands; empty where the suite asks for none.

    Args:
        result: Of `run_suite` or `stored_result`.
    """
    charts: dict[str, Figure] = {}
    for label, report in result.reports.items():
        if _has_chart(result, label):
            entry = Evaluation(label, report, {}, (), {})
            charts[label] = curve_figure(curve_panels(entry), styles_of(entry.methods, entry.controls), key=True)
    return charts


def _has_chart(result: SuiteResult, label: str) -> bool:
    report = result.reports[label]
    return result.suite.charts and any(report.has_curves(metric) for metric in report.metrics)


def _chart_path(result: SuiteResult, label: str) -> str:
    """Where the chart of a model is, seen from the page."""
    quick = "-quick" if result.quick else ""
    return f"{_IMAGES}/{result.suite.name}{quick}-{label}.svg"


def suite_page(result: SuiteResult) -> str:
    """The page: command, seed, images, models with their accuracies, tables, protocols, costs, and how to read it.

    Charts, where the suite asks for them, are linked as files in a folder `images` beside the page.

    Args:
        result: Of `run_suite` or `stored_result`.
    """
    suite, facts = result.suite, result.record
    form = ", in its quick form, which is for trying it" if result.quick else ""
    versions = " · ".join(f"{name} {version}" for name, version in facts["versions"].items())
    records = {label: facts["models"][label] for label in result.reports}
    seconds = sum(record["seconds"] for record in records.values())
    remarks = dict.fromkeys(record.get("remark") for record in records.values())
    parts = [
        f"# {suite.title}",
        suite.about,
        f"Made by `{facts['command']}`{form}: seed {facts['seed']}, {seconds:.0f} s on {facts['device']}; {versions}. "
        "Rows per image, from which all of this follows, are kept by the run."
        + "".join(f" {remark}" for remark in remarks if remark),
        *result.remarks,
        _models(records),
    ]
    if suite.reading:
        parts.append(f"## Reading{' of the full form' if result.quick else ''}\n\n{suite.reading.strip()}")
    for label, report in result.reports.items():
        record = records[label]
        cells = report.summary()
        resumed = " for the last part of a run that was broken off" if record.get("resumed") else ""
        words = (
            f"{record['images']} samples, target {record['target']}; {record['seconds']:.0f} s on "
            f"{record['device']}{resumed}."
        )
        parts += [f"## {label}", words, *report.remarks, tables(report, cells)]
        for published in suite.published:
            if not published.models or label in published.models:
                parts.append(beside(published, cells, suite.seed))
        claims = [claim for claim in suite.claims if not claim.models or label in claim.models]
        parts.append(claims_table(check_claims(claims, report, cells, suite.seed)))
        if _has_chart(result, label):
            parts.append(f"### Curves\n\n![Mean curves of {label}]({_chart_path(result, label)})")
        parts.append(f"### What an explanation costs\n\n{_costs(report, record)}")
    return "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"


def _models(records: Mapping[str, Any]) -> str:
    rows = []
    for label, record in records.items():
        data = record["data"]
        split = "" if data["split"] is None else f", {data['split']}"
        form = "" if data["form"] == "single" else f", {data['form']}"
        evaluator = record["evaluator"] or "itself"
        if size := record.get("evaluator_size"):
            evaluator += f", inputs resized to {size[0]} x {size[1]}"
        model, source = f"{label} (`{record['model']}`)", f"{data['name']}{split}{form}"
        accuracy, images = _accuracy(record["accuracy"]), str(record["images"])
        rows.append((model, accuracy, source, images, str(record["target"]), evaluator))
    return markdown_table(("model", "accuracy (card)", "data", "samples", "explained", "judged by"), rows)


def _accuracy(accuracy: Mapping[str, Any] | None) -> str:
    """The accuracy entry of a card in words: `breed 71.2 % (test)`."""
    if not accuracy:
        return "not measured"
    shares = [f"{name.replace('_', ' ')} {100 * v:.1f} %" for name, v in accuracy.items() if isinstance(v, float)]
    return f"{', '.join(shares)} ({accuracy.get('split', 'unknown split')})"


def _costs(report: Report, record: Mapping[str, Any]) -> str:
    seconds = explain_seconds(report.rows)
    methods = sorted((name for name in seconds if not is_control(name)), key=lambda name: seconds[name])
    table = markdown_table(("method", "seconds per explanation"), [(name, f"{seconds[name]:.4f}") for name in methods])
    return f"{table}\n\nMedian over samples, in batches, on {record['device']}."


def tables(report: Report, cells: Sequence[Cell]) -> str:
    """Methods by metrics with at most four columns a table, metrics in one piece where they fit; remarks below all.

    A column that is the same for every method, such as how often a model is not sure, becomes a line below the tables,
    unless it is 0.

    Args:
        report: Whose protocols are written below.
        cells: Of its summary.
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


def beside(published: PublishedPart, cells: Sequence[Cell], seed: int) -> str:
    """Our numbers beside those of a paper, for the methods and columns that both have; empty without any.

    Args:
        published: Of the paper.
        cells: Ours.
        seed: Of the suite, which names of columns hold where it is not 0.
    """
    ours = {(cell.method, without_seed(cell.column, seed)): cell for cell in cells}
    methods = [name for name in published.values if any(method == name for method, _ in ours)]
    wanted = dict.fromkeys(column for name in methods for column in published.values[name])
    columns = [name for name in wanted if any(column == name for _, column in ours)]
    if not methods or not columns:
        return ""
    per_cent = " Published per cent are shown as shares." if published.percent else ""
    parts = [f"### Beside {published.paper}, {published.table}", f"{' '.join(published.note.split())}{per_cent}"]
    for start in range(0, len(columns), _OUR_COLUMNS):
        part = columns[start : start + _OUR_COLUMNS]
        rows = []
        for method in methods:
            row = [method]
            for column in part:
                cell, value = ours.get((method, column)), published.values[method].get(column)
                share = "—" if value is None else f"{value / 100 if published.percent else float(value):.4g}"
                row += ["" if cell is None else cell.text, share]
            rows.append(row)
        parts.append(markdown_table(["method", *(name for column in part for name in (column, "published"))], rows))
    orders = [_order(published, column, methods, ours) for column in columns]
    parts.append("\n".join(f"- {order}" for order in orders if order))
    return "\n\n".join(part for part in parts if part)


def _order(published: PublishedPart, column: str, methods: Sequence[str], ours: Mapping[tuple[str, str], Cell]) -> str:
    """Whether both put methods in the same order."""
    pairs = [
        (ours[method, column].value, float(published.values[method][column]))
        for method in methods
        if (method, column) in ours and column in published.values[method]
    ]
    pairs = [pair for pair in pairs if not math.isnan(pair[0])]
    if len(pairs) < _FEW:
        return ""
    rho = float(rank_correlation(*torch.tensor(pairs, dtype=torch.float64).mT))
    return "" if math.isnan(rho) else f"{column}: order of {len(pairs)} methods, Spearman's rho {rho:.2f}."
