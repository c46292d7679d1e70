"""A suite's result as a page in Markdown: our numbers beside those of papers."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mhex._files import write_text, writing
from mhex._printable import escaped
from mhex.judge.controls import is_control
from mhex.judge.report import Evaluation, Report
from mhex.judge.rows import explain_seconds
from mhex.judge.tables import Cell, Grid, render
from mhex.lab.config.suite import ClaimPart, PublishedPart
from mhex.lab.suites.stored import SuiteResult
from mhex.stats.comparison import Paired
from mhex.stats.correlation import rank_correlation
from mhex.stats.paired_tests import holm
from mhex.viz.plots import CHARACTER, WIDTH, Look, looks, write
from mhex.viz.report_page import curve_drawings

_GAP, _TITLE, _LINE = 20.0, 20.0, 18.0
_ACROSS = 2  # drawings beside each other
# Files have no page around them that says how lines and letters look.
_STYLE = (
    "text{font:11px system-ui,sans-serif;fill:#1c1c1c}.soft{fill:#5c5c5c}.title{font-weight:600;font-size:12px}"
    ".grid{stroke:#e3e1dc}.axis{stroke:#5c5c5c}"
)


def suite_charts(result: SuiteResult) -> dict[str, str]:
    """For each model with curves a drawing of their means with bands, as SVG; empty where the suite asks for none.

    Args:
        result: Of `run_suite` or `stored_result`.
    """
    return {label: chart(label, report) for label, report in result.reports.items() if is_drawn(result, label)}


def is_drawn(result: SuiteResult, label: str) -> bool:
    """Whether a model has a chart."""
    report = result.reports[label]
    return result.suite.charts and any(report.has_curves(metric) for metric in report.metrics)


def chart(name: str, report: Report) -> str:
    """The mean curves of all metrics that have some, with one key below them, as SVG.

    Args:
        name: What is drawn.
        report: Whose curves.
    """
    one = Evaluation(name, report, {}, (), {})
    found = list(curve_drawings(one))
    shown = {name for _, names in found for name in names}
    styles = {name: look for name, look in looks(one.methods, one.controls).items() if name in shown}
    panels = [re.fullmatch(r".*?<figcaption>(.*?)</figcaption>(<svg.*</svg>)</figure>", svg) for svg, _ in found]
    across = min(_ACROSS, len(panels))
    width = across * WIDTH + (across + 1) * _GAP
    parts, y, row = [], _GAP, 0.0
    for k, panel in enumerate(panels):
        assert panel is not None
        title, svg = html.unescape(panel[1]), panel[2]
        high = float(svg.split('viewBox="0 0 ', 1)[1].split('"', 1)[0].split()[1])
        x = _GAP + k % across * (WIDTH + _GAP)
        placed = svg.replace("<svg ", f'<svg x="{x:g}" y="{y + _TITLE:g}" width="{WIDTH:g}" height="{high:g}" ', 1)
        parts += [write(x, y + 10, title, kind="title", room=WIDTH), placed]
        row = max(row, _TITLE + high + _GAP)
        if k % across == across - 1 or k == len(panels) - 1:
            y, row = y + row, 0.0
    key, below = _key(styles, width, y)
    said = escaped(f"Mean curves of {name}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {below:g}" width="{width:g}" '
        f'height="{below:g}" role="img" aria-label="{said}"><style>{_STYLE}</style>'
        f'<rect width="100%" height="100%" fill="#ffffff"/>'
        f"{''.join(parts)}{''.join(key)}</svg>\n"
    )


def _key(styles: dict[str, Look], width: float, top: float) -> tuple[Iterable[str], float]:
    """What each line stands for, in columns, and where it ends."""
    room = CHARACTER * max(map(len, styles), default=0) + 50
    columns = max(1, int((width - 2 * _GAP) / room))
    lines = math.ceil(len(styles) / columns)
    parts = []
    for k, (name, look) in enumerate(styles.items()):
        x, y = _GAP + k // lines * room, top + k % lines * _LINE
        parts.append(f'<path d="M{x:g} {y:g}h24" stroke-width="2.4" {look.stroke}/>')
        parts.append(write(x + 30, y + 4, name, kind="soft" if look.control else ""))
    return parts, top + lines * _LINE + _GAP / 2


_FEW = 3  # methods, below which an order says nothing
_OUR_COLUMNS = 2  # of ours in one table; each has a published one beside it


def beside(published: PublishedPart, cells: Sequence[Cell], seed: int) -> str:
    """Our numbers beside those of a paper, for the methods and columns that both have; empty without any.

    Args:
        published: Of the paper.
        cells: Ours.
        seed: Of the suite, which names of columns hold where it is not 0.
    """
    place = {(cell.method, without_seed(cell.column, seed)): cell for cell in cells}
    methods = [name for name in published.values if any(method == name for method, _ in place)]
    asked = dict.fromkeys(column for name in methods for column in published.values[name])
    columns = [name for name in asked if any(column == name for _, column in place)]
    if not methods or not columns:
        return ""
    tables = [
        _table(published, columns[at : at + _OUR_COLUMNS], methods, place)
        for at in range(0, len(columns), _OUR_COLUMNS)
    ]
    orders = [_order(published, column, methods, place) for column in columns]
    head = f"### Beside {published.paper}, {published.table}"
    note = (
        f"{' '.join(published.note.split())}{' Published per cent are shown as shares.' if published.percent else ''}"
    )
    listed = "\n".join(f"- {one}" for one in orders if one)
    return "\n\n".join(part for part in (head, note, *tables, listed) if part)


def _table(
    published: PublishedPart, columns: Sequence[str], methods: Sequence[str], place: Mapping[tuple[str, str], Cell]
) -> str:
    heads = [f"{name} | published" for name in columns]
    lines = [f"| method | {' | '.join(heads)} |", "|---" * (1 + 2 * len(columns)) + "|"]
    for method in methods:
        row = []
        for column in columns:
            cell, value = place.get((method, column)), published.values[method].get(column)
            row += ["" if cell is None else cell.text, "—" if value is None else f"{_scaled(published, value):.4g}"]
        lines.append(f"| {method} | {' | '.join(row)} |")
    return "\n".join(lines)


def without_seed(column: str, seed: int) -> str:
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


_LEVEL = 0.05


@dataclass(frozen=True)
class Checked:
    """A pair of methods that a claim speaks of, tested.

    Attributes:
        claim: The claim.
        first, second: The method that is said to be better, and the other.
        pair: Of first less second.
        adjusted: P corrected (Holm) for all pairs of the claims on one model.
        higher: Whether higher is better.
    """

    claim: ClaimPart
    first: str
    second: str
    pair: Paired
    adjusted: float
    higher: bool

    @property
    def result(self) -> str:
        """What is shown of the first method."""
        if not self.adjusted < _LEVEL:
            return "not told apart"
        return "better" if (self.pair.difference > 0) is self.higher else "worse"


def check_claims(claims: Sequence[ClaimPart], report: Report, cells: Sequence[Cell], seed: int) -> list[Checked]:
    """Test each pair of the claims by flips of signs; pairs of methods that were not judged are passed over.

    Args:
        claims: Those for the model.
        report: Of the model.
        cells: Of its summary.
        seed: Of the suite, which names of columns hold where it is not 0.
    """
    named = {without_seed(cell.column, seed): cell for cell in cells}
    found: list[tuple[ClaimPart, str, str, Paired, bool]] = []
    for claim in claims:
        cell = named.get(claim.column)
        if cell is None or cell.higher is None:
            continue
        output = report.metric(cell.metric).outputs.index(cell.output)
        for first in claim.better:
            for second in claim.than:
                if first in report.methods and second in report.methods:
                    pairs = report.compare(cell.metric, [first, second], output=output)
                    found.append((claim, first, second, pairs[first, second], cell.higher))
    adjusted = holm([pair.p for _, _, _, pair, _ in found])
    return [
        Checked(claim, first, second, pair, p, higher)
        for (claim, first, second, pair, higher), p in zip(found, adjusted, strict=True)
    ]


def claims_table(tested: Sequence[Checked]) -> str:
    """The tests in Markdown; empty without any."""
    if not tested:
        return ""
    lines = ["| claim | by | pair | difference | p | the first is |", "|---|---|---|---|---|---|"]
    for one in tested:
        lines.append(
            f"| {one.claim.words} | {one.claim.column} {'↑' if one.higher else '↓'} | {one.first} minus {one.second} | "
            f"{one.pair.difference:.3g} ({one.pair.low:.3g} to {one.pair.high:.3g}) | {_p(one.adjusted)} | "
            f"{one.result} |"
        )
    note = (
        "Pairs on the same samples, with 95 % bootstrap intervals; p of two-sided flips of signs, corrected (Holm) for "
        "all pairs of this table."
    )
    return "\n".join(["### Claims, tested", "", *lines, "", note])


def _p(value: float) -> str:
    return f"{value:.2g}" if value >= 0.001 else "< 0.001"


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
    suite, told = result.suite, result.record
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
