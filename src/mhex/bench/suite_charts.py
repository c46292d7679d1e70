"""Curves of a suite's models as files of SVG, which pages in Markdown show without anything else."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable

from mhex._markup import escaped
from mhex.bench.page_charts import curve_drawings
from mhex.bench.report import Report
from mhex.bench.runs import Evaluation
from mhex.bench.suite_run import SuiteResult
from mhex.viz.svg import CHARACTER, WIDTH, Look, looks, write

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
