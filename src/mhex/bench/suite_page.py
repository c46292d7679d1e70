"""A suite's result as a page in Markdown: our numbers beside those of papers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from mhex.bench.gathering import explain_seconds
from mhex.bench.report import Report
from mhex.bench.suite import PublishedPart
from mhex.bench.suite_run import SuiteResult
from mhex.bench.tables import Cell
from mhex.perturb.correlation import rank_correlation

_FEW = 3  # methods, below which an order says nothing


def suite_page(result: SuiteResult) -> str:
    """The page: command, seed, images, models with their accuracies, tables, protocols, costs, and how to read it.

    Args:
        result: Of `run_suite`.
    """
    suite, told = result.suite, result.told
    form = ", in its quick form, which is for trying it" if result.quick else ""
    made = " · ".join(f"{name} {version}" for name, version in told["versions"].items())
    parts = [
        f"# {suite.title}",
        suite.about,
        f"Made by `{told['command']}`{form}: seed {told['seed']}, {told['wall_seconds']:.0f} s on "
        f"{told['device']}; {made}. Rows per image, from which all of this follows, are kept by the run.",
        _models(told["models"]),
    ]
    for label, report in result.reports.items():
        record = told["models"][label]
        cells = report.summary()
        parts += [f"## {label}", _words(record), report.table("markdown", "all")]
        for published in suite.published:
            if not published.models or label in published.models:
                parts.append(_beside(published, cells, suite.seed))
        parts.append(f"### What an explanation costs\n\n{_costs(report, record)}")
    if suite.reading:
        parts.append(f"## Reading\n\n{suite.reading.strip()}")
    return "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"


def _models(records: Mapping[str, Any]) -> str:
    lines = ["| model | accuracy (card) | data | samples | explained | outputs read of |", "|---|---|---|---|---|---|"]
    for label, one in records.items():
        data = one["data"]
        split = "" if data["split"] is None else f", {data['split']}"
        form = "" if data["form"] == "single" else f", {data['form']}"
        read = one["evaluator"] or "itself"
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
    return f"{record['images']} samples, target {record['target']}; {record['seconds']:.0f} s on {record['device']}."


def _beside(published: PublishedPart, cells: Sequence[Cell], seed: int) -> str:
    """Our numbers beside those of a paper, for the methods and columns that both have; empty without any."""
    place = {(cell.method, _without_seed(cell.column, seed)): cell for cell in cells}
    methods = [name for name in published.values if any(method == name for method, _ in place)]
    asked = dict.fromkeys(column for name in methods for column in published.values[name])
    columns = [name for name in asked if any(column == name for _, column in place)]
    if not methods or not columns:
        return ""
    heads = [f"{name} | published" for name in columns]
    lines = [f"| method | {' | '.join(heads)} |", "|---" * (1 + 2 * len(columns)) + "|"]
    for method in methods:
        row = []
        for column in columns:
            cell, value = place.get((method, column)), published.values[method].get(column)
            row += ["" if cell is None else cell.text, "—" if value is None else f"{_scaled(published, value):.4g}"]
        lines.append(f"| {method} | {' | '.join(row)} |")
    orders = [_order(published, column, methods, place) for column in columns]
    head = f"### Beside {published.paper}, {published.table}"
    note = (
        f"{' '.join(published.note.split())}{' Published per cent are shown as shares.' if published.percent else ''}"
    )
    listed = "\n".join(f"- {one}" for one in orders if one)
    return "\n\n".join(part for part in (head, note, "\n".join(lines), listed) if part)


def _without_seed(column: str, seed: int) -> str:
    """A column as it is called where the seed is 0, which names it for all seeds."""
    return column.replace(f"(seed={seed}, ", "(").replace(f" (seed={seed})", "")


def _scaled(published: PublishedPart, value: float) -> float:
    return value / 100 if published.percent else float(value)


def _order(published: PublishedPart, column: str, methods: Sequence[str], place: Mapping[tuple[str, str], Cell]) -> str:
    """Whether both put methods in the same order."""
    pairs = [
        (place[method, column].value, float(published.values[method][column]))
        for method in methods
        if (method, column) in place and column in published.values[method]
    ]
    pairs = [pair for pair in pairs if not math.isnan(pair[0])]
    if len(pairs) < _FEW:
        return ""
    ours, theirs = torch.tensor(pairs, dtype=torch.float64).mT
    rho = float(rank_correlation(ours, theirs))
    return "" if math.isnan(rho) else f"{column}: order of {len(pairs)} methods, Spearman's rho {rho:.2f}."


def _costs(report: Report, record: Mapping[str, Any]) -> str:
    lines = ["| method | seconds per explanation |", "|---|---|"]
    found = explain_seconds(report.rows)
    lines += [f"| {name} | {found[name]:.4f} |" for name in sorted(found, key=lambda name: found[name])]
    return "\n".join([*lines, "", f"Median over samples, in batches, on {record['device']}."])
