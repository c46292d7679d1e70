"""Tables of a report, for the terminal and for papers."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mhex.errors import ArgumentError


@dataclass(frozen=True)
class Cell:
    """One number of a table.

    Attributes:
        method: As it is called in tables.
        metric: Its name in the report.
        output: Which of its outputs.
        value: Of all images that count.
        low, high: Ends of its interval.
        n: Images that count.
        skipped: Images that do not.
        marked: Whether it is the best, or not shown to be worse.
        higher: Whether higher is better; None where neither is.
    """

    method: str
    metric: str
    output: str
    value: float
    low: float
    high: float
    n: int
    skipped: int
    marked: bool
    higher: bool | None

    @property
    def column(self) -> str:
        """Heading without the direction."""
        return self.metric if self.output == "value" else f"{self.metric} {self.output}"

    @property
    def text(self) -> str:
        """The number with half the width of its interval."""
        if math.isnan(self.value):
            return "none"
        digits = _digits(self.high - self.low)
        return f"{self.value:.{digits}f} ± {(self.high - self.low) / 2:.{digits}f}"


@dataclass(frozen=True)
class Grid:
    """A table: methods down, metrics across.

    Attributes:
        methods: In the order of lines.
        cells: All of its numbers.
        notes: For each metric, how it was measured.
    """

    methods: Sequence[str]
    cells: Sequence[Cell]
    notes: Mapping[str, str]

    @property
    def columns(self) -> list[tuple[str, bool | None]]:
        """Headings, and whether higher is better."""
        return list(dict.fromkeys((cell.column, cell.higher) for cell in self.cells))

    def lines(self) -> list[tuple[str, list[Cell | None]]]:
        """Cells of every method, in the order of the columns."""
        place = {(cell.method, cell.column): cell for cell in self.cells}
        return [(method, [place.get((method, name)) for name, _ in self.columns]) for method in self.methods]

    def remarks(self) -> list[str]:
        """Numbers of images, and protocols."""
        counts = {(cell.metric, cell.n, cell.skipped) for cell in self.cells}
        found = []
        for metric, protocol in self.notes.items():
            sizes = sorted({(n, skipped) for name, n, skipped in counts if name == metric})
            told = ", ".join(f"n = {n}" + (f" ({skipped} skipped)" if skipped else "") for n, skipped in sizes)
            found.append(f"{metric}: {told}; {protocol}")
        found.append(
            "± is half of the 95 % bootstrap interval over images. Marked: the best, and all not shown to be worse."
        )
        return found


def render(grid: Grid, form: str) -> str:
    """A table as text.

    Args:
        grid: The table.
        form: `"text"`, `"markdown"`, `"latex"` or `"html"`.
    """
    forms = {"text": _text, "markdown": _markdown, "latex": _latex, "html": _html}
    if form not in forms:
        raise ArgumentError(f"Expected form to be one of {', '.join(forms)}, but got {form!r}.")
    return forms[form](grid)


def _heads(grid: Grid, up: str = "↑", down: str = "↓") -> list[str]:
    return [name if higher is None else f"{name} {up if higher else down}" for name, higher in grid.columns]


def _text(grid: Grid) -> str:
    body = [[method, *(_starred(cell) for cell in cells)] for method, cells in grid.lines()]
    rows = [["method", *_heads(grid)], *body]
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    lines = ["  ".join(value.ljust(width) for value, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    rule = "-" * max(map(len, lines))
    return "\n".join([lines[0], rule, *lines[1:], rule, *grid.remarks()])


def _starred(cell: Cell | None) -> str:
    return "" if cell is None else f"{cell.text} *" if cell.marked else cell.text


def _markdown(grid: Grid) -> str:
    lines = [f"| method | {' | '.join(_heads(grid))} |", "|---" * (len(grid.columns) + 1) + "|"]
    for method, cells in grid.lines():
        shown = ["" if cell is None else f"**{cell.text}**" if cell.marked else cell.text for cell in cells]
        lines.append(f"| {method} | {' | '.join(shown)} |")
    return "\n".join([*lines, "", *(f"- {remark}" for remark in grid.remarks())]) + "\n"


def _latex(grid: Grid) -> str:
    heads = " & ".join(_escaped(name) for name in _heads(grid, r"$\uparrow$", r"$\downarrow$"))
    lines = [r"\begin{tabular}{l" + "r" * len(grid.columns) + "}", rf"method & {heads} \\ \hline"]
    for method, cells in grid.lines():
        numbers = ["" if cell is None else cell.text.replace("±", r"$\pm$") for cell in cells]
        shown = [
            rf"\textbf{{{number}}}" if cell is not None and cell.marked else number
            for number, cell in zip(numbers, cells, strict=True)
        ]
        lines.append(rf"{_escaped(method)} & {' & '.join(shown)} \\")
    return "\n".join([*lines, r"\end{tabular}", *(f"% {remark}" for remark in grid.remarks())]) + "\n"


def _escaped(text: str) -> str:
    return text.replace("_", r"\_").replace("%", r"\%").replace("&", r"\&")


def _html(grid: Grid) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in ("method", *_heads(grid)))
    body = []
    for method, cells in grid.lines():
        shown = [
            "<td></td>"
            if cell is None
            else f"<td><b>{html.escape(cell.text)}</b></td>"
            if cell.marked
            else f"<td>{html.escape(cell.text)}</td>"
            for cell in cells
        ]
        body.append(f"<tr><td>{html.escape(method)}</td>{''.join(shown)}</tr>")
    notes = "".join(f"<li>{html.escape(remark)}</li>" for remark in grid.remarks())
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table><ul>{notes}</ul>"


def _digits(width: float) -> int:
    """Digits behind the point that an interval of this width leaves meaning: two figures of it."""
    if not width > 0 or math.isinf(width):
        return 3
    return max(0, min(6, 1 - math.floor(math.log10(width / 2))))
