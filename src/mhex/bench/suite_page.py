"""A suite's result as a page in Markdown: our numbers beside those of papers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mhex._files import write_text, writing
from mhex.bench.controls import is_control
from mhex.bench.gathering import explain_seconds
from mhex.bench.report import Report
from mhex.bench.suite_beside import beside
from mhex.bench.suite_charts import is_drawn, suite_charts
from mhex.bench.suite_claims import check_claims, claims_table
from mhex.bench.suite_run import SuiteResult
from mhex.bench.tables import Cell, Grid, render

_ZERO = re.compile(r"[0.± ]+")
_COLUMNS = 4  # of numbers in one table: more do not fit beside each other on a page
_IMAGES = "images"  # the folder of charts beside a page


def write_page(result: SuiteResult, path: Path) -> list[Path]:
    """Write the page, and its charts into the folder `images` beside it.

    Args:
        result: Of `run_suite` or `stored_result`.
        path: Of the page.

    Returns:
        All files, the page first.
    """
    drawn = suite_charts(result)
    with writing(path):
        (path.parent / _IMAGES if drawn else path.parent).mkdir(parents=True, exist_ok=True)
    for label, svg in drawn.items():
        write_text(svg, path.parent / _chart(result, label))
    write_text(suite_page(result), path)  # the last, because it links the charts
    return [path, *(path.parent / _chart(result, label) for label in drawn)]


def suite_page(result: SuiteResult) -> str:
    """The page: command, seed, images, models with their accuracies, tables, protocols, costs, and how to read it.

    Charts, where the suite asks for them, are linked as files in a folder `images` beside the page.

    Args:
        result: Of `run_suite` or `stored_result`.
    """
    suite, told = result.suite, result.told
    form = ", in its quick form, which is for trying it" if result.quick else ""
    made = " · ".join(f"{name} {version}" for name, version in told["versions"].items())
    records = {label: told["models"][label] for label in result.reports}
    seconds = sum(one["seconds"] for one in records.values())
    parts = [
        f"# {suite.title}",
        suite.about,
        f"Made by `{told['command']}`{form}: seed {told['seed']}, {seconds:.0f} s on {told['device']}; {made}. Rows "
        "per image, from which all of this follows, are kept by the run."
        + "".join(f" {line}" for line in dict.fromkeys(one.get("remark") for one in records.values()) if line),
        *result.remarks,
        _models(records),
    ]
    if suite.reading:
        parts.append(f"## Reading{' of the full form' if result.quick else ''}\n\n{suite.reading.strip()}")
    for label, report in result.reports.items():
        record = records[label]
        cells = report.summary()
        parts += [f"## {label}", _words(record), *report.remarks, tables(report, cells)]
        for published in suite.published:
            if not published.models or label in published.models:
                parts.append(beside(published, cells, suite.seed))
        claims = [one for one in suite.claims if not one.models or label in one.models]
        parts.append(claims_table(check_claims(claims, report, cells, suite.seed)))
        if is_drawn(result, label):
            parts.append(f"### Curves\n\n![Mean curves of {label}]({_chart(result, label)})")
        parts.append(f"### What an explanation costs\n\n{_costs(report, record)}")
    return "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"


def tables(report: Report, cells: Sequence[Cell]) -> str:
    """Methods by metrics with at most four columns a table, metrics in one piece where they fit; remarks below all.

    What is the same for every method, such as how often a model is not sure, is told below, unless it is 0.

    Args:
        report: Whose protocols are told.
        cells: Of its summary.
    """
    groups: list[list[str]] = []
    by_metric: dict[str, dict[str, None]] = {}
    texts: dict[str, set[str]] = {}
    for cell in cells:
        if cell.higher is None:
            texts.setdefault(cell.column, set()).add(cell.text)
    same = {column: found.pop() for column, found in texts.items() if len(found) == 1 < len(report.methods)}
    told = {cell.column for cell in cells} - same.keys()
    for cell in cells:
        if cell.column in told:
            by_metric.setdefault(cell.metric, {})[cell.column] = None
    for own in map(list, by_metric.values()):
        if groups and len(groups[-1]) + len(own) <= _COLUMNS:
            groups[-1] += own
        else:
            groups += [own[at : at + _COLUMNS] for at in range(0, len(own), _COLUMNS)]
    drawn: list[str] = []
    remarks: dict[str, None] = {}
    for columns in groups:
        shown = [cell for cell in cells if cell.column in columns]
        notes = {name: report.protocol(name) for name in dict.fromkeys(cell.metric for cell in shown)}
        table, _, below = render(Grid(report.methods, shown, notes), "markdown").strip().partition("\n\n")
        drawn.append(table)
        remarks |= dict.fromkeys(below.splitlines())
    general = [line for line in remarks if not any(line.startswith(f"- {name}:") for name in by_metric)]
    own_first = [line for line in remarks if line not in general]
    alike = [f"- {column}: {text} for all" for column, text in same.items() if not _ZERO.fullmatch(text)]
    return "\n\n".join([*drawn, "\n".join([*own_first, *alike, *general])])


def _chart(result: SuiteResult, label: str) -> str:
    """Where the chart of a model is, seen from the page."""
    quick = "-quick" if result.quick else ""
    return f"{_IMAGES}/{result.suite.name}{quick}-{label}.svg"


def _models(records: Mapping[str, Any]) -> str:
    lines = ["| model | accuracy (card) | data | samples | explained | judged by |", "|---|---|---|---|---|---|"]
    for label, one in records.items():
        data = one["data"]
        split = "" if data["split"] is None else f", {data['split']}"
        form = "" if data["form"] == "single" else f", {data['form']}"
        read = one["evaluator"] or "itself"
        if size := one.get("evaluator_size"):
            read += f", inputs resized to {size[0]} x {size[1]}"
        lines.append(
            f"| {label} (`{one['model']}`) | {_accuracy(one['accuracy'])} | {data['name']}{split}{form} | "
            f"{one['images']} | {one['target']} | {read} |"
        )
    return "\n".join(lines)


def _accuracy(accuracy: Mapping[str, Any] | None) -> str:
    """The accuracy entry of a card in words: `breed 71.2 % (test)`."""
    if not accuracy:
        return "not measured"
    shares = [f"{name.replace('_', ' ')} {100 * v:.1f} %" for name, v in accuracy.items() if isinstance(v, float)]
    return f"{', '.join(shares)} ({accuracy.get('split', 'unknown split')})"


def _words(record: Mapping[str, Any]) -> str:
    part = " for the last part of a run that was broken off" if record.get("resumed") else ""
    return (
        f"{record['images']} samples, target {record['target']}; {record['seconds']:.0f} s on {record['device']}{part}."
    )


def _costs(report: Report, record: Mapping[str, Any]) -> str:
    lines = ["| method | seconds per explanation |", "|---|---|"]
    found = explain_seconds(report.rows)
    methods = sorted((name for name in found if not is_control(name)), key=lambda name: found[name])
    lines += [f"| {name} | {found[name]:.4f} |" for name in methods]
    return "\n".join([*lines, "", f"Median over samples, in batches, on {record['device']}."])
