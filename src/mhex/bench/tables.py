"""Tables of a report, for the terminal and for papers."""

from __future__ import annotations

import math
import re
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mhex._markup import escaped
from mhex._printable import printable
from mhex.bench.controls import RANDOM, is_control
from mhex.bench.layout import in_columns
from mhex.bench.verdicts import Verdict
from mhex.errors import ArgumentError

DAGGER = "†"
FEWEST = 6  # samples of an interval: all of fewer lie on one side of the middle in more than 5 % of all cases
_LATEX: dict[str, str | int | None] = {
    **{sign: f"\\{sign}" for sign in "{}$&%#_"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    DAGGER: r"$\dagger$",
    "—": "---",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
}


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
        higher: Whether higher is better; None where neither is.
        verdict: What the column shows; None where neither side is better.
        skips: Which images do not count, in a few words.
        share: Whether it is a share of hits, whose interval is not symmetric.
    """

    method: str
    metric: str
    output: str
    value: float
    low: float
    high: float
    n: int
    skipped: int
    higher: bool | None
    verdict: Verdict | None = None
    skips: str = ""
    share: bool = False

    @property
    def marked(self) -> bool:
        """Whether it is a method that no other is shown to be better than."""
        return self.verdict is not None and self.method in self.verdict.best

    @property
    def doubtful(self) -> bool:
        """Whether it is a method that is not shown to be better than random maps."""
        return self.verdict is not None and self.method in self.verdict.doubtful

    @property
    def tested(self) -> tuple[int, int] | None:
        """The fewest and the most images on which two methods were compared."""
        return None if self.verdict is None else self.verdict.tested

    @property
    def column(self) -> str:
        """Heading without the direction."""
        return self.metric if self.output == "value" else f"{self.metric} {self.output}"

    @property
    def text(self) -> str:
        """The number with half the width of its interval, or with the ends of it, if it is a share.

        Without a number: a dash, and how many images were skipped. By few images, a dash in the place of the interval.
        """
        if math.isnan(self.value):
            return f"— ({self.skipped} skipped)" if self.skipped else "—"
        digits, dagger = _digits(self.high - self.low), DAGGER if self.doubtful else ""
        value = f"{self.value:.{digits}f}"
        if self.share and not math.isnan(self.high - self.low):
            return f"{value} ({self.low:.{digits}f} to {self.high:.{digits}f}){dagger}"
        few = self.n < FEWEST or math.isnan(self.high - self.low)
        return f"{value} ± {'—' if few else f'{(self.high - self.low) / 2:.{digits}f}'}{dagger}"


@dataclass(frozen=True)
class Grid:
    """A table: methods down, metrics across.

    Attributes:
        methods: In the order of lines.
        cells: All of its numbers.
        notes: For each metric, how it was measured.
        above: Sentences on the run as a whole, which come before all other remarks.
    """

    methods: Sequence[str]
    cells: Sequence[Cell]
    notes: Mapping[str, str]
    above: Sequence[str] = ()

    @property
    def columns(self) -> list[tuple[str, bool | None]]:
        """Headings, and whether higher is better."""
        return list(dict.fromkeys((cell.column, cell.higher) for cell in self.cells))

    @property
    def heads(self) -> list[str]:
        """Headings with the direction."""
        return [name if higher is None else f"{name} {'↑' if higher else '↓'}" for name, higher in self.columns]

    def lines(self) -> list[tuple[str, list[Cell | None]]]:
        """Cells of every method, in the order of the columns."""
        place = {(cell.method, cell.column): cell for cell in self.cells}
        return [(method, [place.get((method, name)) for name, _ in self.columns]) for method in self.methods]

    def remarks(self) -> list[str]:
        """Numbers of images, and protocols."""
        found = [*self.above]
        for metric, protocol in self.notes.items():
            told = [_counts([cell for cell in self.cells if cell.metric == metric]), protocol]
            found.append(f"{metric}: {'; '.join(part for part in told if part)}")
        shares = " Shares of hits have their exact interval in brackets." if any(c.share for c in self.cells) else ""
        few = any(0 < cell.n < FEWEST and not cell.share for cell in self.cells)
        found.append(
            f"± is half of the 95 % bootstrap interval over samples{f', from {FEWEST} of them on' if few else ''}."
            f"{shares} Marked: the best, and all that no other method is shown to be better than; control maps are "
            "never marked."
        )
        if any(cell.doubtful for cell in self.cells):
            found.append(f"{DAGGER} not shown to be better than {RANDOM}.")
        return found


def _counts(cells: Sequence[Cell]) -> str:
    """Images of a metric: those of most methods, methods that have others, and those of tests where they are fewer."""
    sizes: dict[tuple[int, int], list[str]] = {}
    for method, size in {cell.method: (cell.n, cell.skipped) for cell in cells}.items():
        sizes.setdefault(size, []).append(method)
    usual = max(sizes, key=lambda size: (len(sizes[size]), size[0]), default=None)
    told = []
    for size in sorted(sizes, key=lambda size: (size != usual, -size[0])):
        why = f": {cells[0].skips}" if cells[0].skips else ""
        counted = f"n = {size[0]}" + (f" ({size[1]} skipped{why})" if size[1] else "")
        told.append(counted if size == usual else f"{counted} of {', '.join(sizes[size])}")
    spans = [cell.tested for cell in cells if cell.tested is not None]
    if any(cell.tested is not None and cell.tested[0] < cell.n for cell in cells):
        low, high = min(span[0] for span in spans), max(span[1] for span in spans)
        told.append(
            f"pairs were tested on {low} samples" if low == high else f"pairs were tested on {low} to {high} samples"
        )
    few = {cell.verdict.few for cell in cells if cell.verdict is not None and cell.verdict.few is not None}
    if few:
        told.append(f"{max(few)} {'sample is' if max(few) == 1 else 'samples are'} too few to show any difference")
    if any(cell.verdict is not None and cell.verdict.apart for cell in cells):
        told.append("methods were judged on different samples, so that none is marked")
    return "; ".join(told)


def render(grid: Grid, form: str, width: int | None = None) -> str:
    """A table as text.

    Args:
        grid: The table.
        form: `"text"`, `"markdown"`, `"latex"` or `"html"`.
        width: Of the terminal, for `"text"`; None for what it is.
    """
    forms = {"text": lambda grid: _text(grid, width), "markdown": _markdown, "latex": _latex, "html": _html}
    if form not in forms:
        raise ArgumentError(f"Expected form to be one of {', '.join(forms)}, but got {form!r}.")
    return printable(forms[form](grid))


def _text(grid: Grid, width: int | None) -> str:
    width = shutil.get_terminal_size().columns if width is None else width
    body = [[method, *(_starred(cell) for cell in cells)] for method, cells in grid.lines()]
    table = in_columns([["method", *grid.heads], *body], width)
    notes = [
        textwrap.fill(one, max(width, 40), subsequent_indent="  ", break_on_hyphens=False) for one in grid.remarks()
    ]
    rule = "-" * max(map(len, table.splitlines()))
    return "\n".join([table, rule, *notes])


def _starred(cell: Cell | None) -> str:
    return "" if cell is None else f"{cell.text} *" if cell.marked else cell.text


def _markdown(grid: Grid) -> str:
    heads = " | ".join(_plain(head) for head in grid.heads)
    lines = [f"| method | {heads} |", "|---" * (len(grid.columns) + 1) + "|"]
    for method, cells in grid.lines():
        shown = ["" if cell is None else f"**{cell.text}**" if cell.marked else cell.text for cell in cells]
        lines.append(f"| {_plain(method)} | {' | '.join(shown)} |")
    return "\n".join([*lines, "", *(f"- {_plain(remark)}" for remark in grid.remarks())]) + "\n"


def _plain(text: str) -> str:
    """Without anything that Markdown takes for its own; `_` inside a word is none of that."""
    return re.sub(r"([\\|*<`])", r"\\\1", " ".join(text.split()))


def _latex(grid: Grid) -> str:
    heads = " & ".join(_escaped(head) for head in grid.heads)
    lines = [r"\begin{tabular}{l" + "r" * len(grid.columns) + "}", rf"method & {heads} \\ \hline"]
    for method, cells in grid.lines():
        numbers = ["" if cell is None else _escaped(cell.text) for cell in cells]
        shown = [
            rf"\textbf{{{number}}}" if cell is not None and cell.marked else number
            for number, cell in zip(numbers, cells, strict=True)
        ]
        lines.append(rf"{_escaped(method)} & {' & '.join(shown)} \\")
    # A comment ends with its line.
    notes = (f"% {' '.join(remark.split())}" for remark in grid.remarks())
    return "\n".join([*lines, r"\end{tabular}", *notes]) + "\n"


def _escaped(text: str) -> str:
    return " ".join(text.split()).translate(str.maketrans(_LATEX))


def _html(grid: Grid) -> str:
    head = "".join(f"<th>{escaped(name)}</th>" for name in ("method", *grid.heads))
    body = []
    for method, cells in grid.lines():
        numbers = ["" if cell is None else escaped(cell.text) for cell in cells]
        shown = [
            f"<td><b>{number}</b></td>" if cell is not None and cell.marked else f"<td>{number}</td>"
            for number, cell in zip(numbers, cells, strict=True)
        ]
        kind = ' class="control"' if is_control(method) else ""
        body.append(f"<tr{kind}><td>{escaped(method)}</td>{''.join(shown)}</tr>")
    notes = "".join(f"<li>{escaped(remark)}</li>" for remark in grid.remarks())
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table><ul>{notes}</ul>"


def _digits(width: float) -> int:
    """Digits behind the point that an interval of this width leaves meaning: two figures of it."""
    if not width > 0 or math.isinf(width):
        return 3
    return max(0, min(6, 1 - math.floor(math.log10(width / 2))))
