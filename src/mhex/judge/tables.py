"""Tables of a report, for the terminal and for papers."""

from __future__ import annotations

import math
import re
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mhex._printable import escaped, printable
from mhex.errors import ArgumentError
from mhex.judge.controls import RANDOM, is_control
from mhex.metrics.base import PerImage
from mhex.stats.comparison import PairTests, least_p, marked, pair_tests
from mhex.stats.intervals import Summary, interval_of

Field = list[str]  # lines of it

_NAME = 32  # signs in a line of the first column, where a table does not fit
_HEAD = 16  # and at least of a heading


def in_columns(rows: Sequence[Sequence[str]], width: int) -> str:
    """A table with a line below its headings, in one piece if it fits.

    Otherwise headings and names are broken into lines, and columns that have no room are put below the others, beside
    the names again.

    Args:
        rows: Headings, and lines below them; the first field is a name.
        width: Signs in a line.
    """
    names, *columns = ([[field] for field in column] for column in zip(*rows, strict=True))
    if _wide([names, *columns]) > width:
        names = [_broken(field[0], _NAME) for field in names]
        columns = [[_broken(head[0], max(_HEAD, _wide([rest]))), *rest] for head, *rest in columns]
    blocks: list[list[list[Field]]] = []
    for column in columns:
        if not blocks or _wide([*blocks[-1], column]) > width:
            blocks.append([names])
        blocks[-1].append(column)
    return "\n\n".join(_drawn(block) for block in blocks)


def _wide(columns: Sequence[Sequence[Field]]) -> int:
    """Signs that columns take, with two between them."""
    widest = [max((len(line) for field in column for line in field), default=0) for column in columns]
    return sum(widest) + 2 * (len(columns) - 1)


def _broken(text: str, width: int) -> Field:
    kept = re.sub(r" (\S)$", "\u00a0\\1", text)  # a single sign, such as an arrow, stays with its word
    lines = textwrap.wrap(kept, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return [line.replace("\u00a0", " ") for line in lines] or [""]


def _drawn(columns: Sequence[Sequence[Field]]) -> str:
    widths, found = [_wide([column]) for column in columns], []
    for k, fields in enumerate(zip(*columns, strict=True)):
        high = max(map(len, fields))
        # Headings stand on the rule, all else hangs from the top.
        filled = [
            [""] * (high - len(field)) + field if k == 0 else field + [""] * (high - len(field)) for field in fields
        ]
        for line in zip(*filled, strict=True):
            found.append("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())
        if k == 0:
            found.append("-" * _wide(columns))
    return "\n".join(found)


Numbers = Mapping[str, Tensor]  # of each method, (n, J), NaN where an image has none


def per_image(made: PerImage, numbers: Numbers, output: int) -> dict[str, Tensor]:
    """The value of each image by itself, (n,), for each method; NaN where there is none."""
    # An image counts with all of its numbers or not at all, as in the table.
    counts = {name: rows.isfinite().all(1, keepdim=True) for name, rows in numbers.items()}
    whole = {name: rows.where(counts[name], torch.nan) for name, rows in numbers.items()}
    return {name: made.summary(rows[:, None, :])[..., output] for name, rows in whole.items()}


def compared(made: PerImage, numbers: Numbers, names: Sequence[str], output: int) -> tuple[Tensor, Summary | None]:
    """What is compared of M methods, (n, M) or (n, M, J), and how a value of the data set is made of it."""
    if made.additive:
        values = per_image(made, numbers, output)
        return torch.stack([values[name] for name in names], 1), None
    # Such as the ratio of sums over all images.
    table = torch.stack([numbers[name] for name in names], 1)
    return table, lambda rows: made.summary(rows)[..., output : output + 1]


def cells_of(
    name: str,
    made: PerImage,
    numbers: Numbers,
    there: Mapping[str, Tensor],
    resamples: int,
    confidence: float,
    seed: int,
    outputs: int,
) -> list[Cell]:
    """A cell for each of the first outputs of a metric and each method.

    Args:
        name: Of the metric in the report.
        made: The metric.
        numbers: Of the methods.
        there: Whether each method was judged on each image, bool (n,).
        resamples: Of the bootstrap.
        confidence: Of the intervals.
        seed: Of the bootstrap.
        outputs: How many.
    """
    cells, found = [], {}
    for method, rows in numbers.items():
        counted = rows[rows.isfinite().all(1)]
        found[method] = torch.full((3, len(made.outputs)), torch.nan, dtype=torch.float64)
        if len(counted):
            ends = interval_of(counted, made.summary, resamples, confidence, seed, hits=made.hits)
            found[method] = torch.stack([made.summary(counted), ends.low, ends.high])
    apart = not _on_the_same_images(there)
    for k, verdict in enumerate(_verdicts(made, numbers, outputs)):
        if verdict is not None and apart:
            verdict = replace(verdict, best=frozenset(), apart=True)
        for method, rows in numbers.items():
            n = int(rows.isfinite().all(1).sum())
            value, low, high, sizes = *found[method][:, k].tolist(), (n, int(there[method].sum()) - n)
            of, up, skips = made.outputs[k], made.better[k], made.skips
            cells.append(Cell(method, name, of, value, low, high, *sizes, up, verdict, skips, made.hits))
    return cells


def _on_the_same_images(there: Mapping[str, Tensor]) -> bool:
    """Whether all methods were judged on the same images; control maps may have others."""
    judged = [images for name, images in there.items() if not is_control(name)]
    return all(torch.equal(images, judged[0]) for images in judged)


def _verdicts(made: PerImage, numbers: Numbers, outputs: int) -> list[Verdict | None]:
    """What is shown by each of the first outputs; None where neither side is better."""
    names = list(numbers)
    if made.additive:
        tested = [pair_tests(compared(made, numbers, names, k)[0])[0] for k in range(outputs)]
    else:  # all of them are computed at once
        tested = pair_tests(
            torch.stack(list(numbers.values()), 1), summary=lambda rows: made.summary(rows)[..., :outputs]
        )
    return [None if up is None else verdicts(names, one, up) for one, up in zip(tested, made.better, strict=False)]


_LEVEL = 0.05


@dataclass(frozen=True)
class Verdict:
    """Of one number.

    Attributes:
        best: Methods that no other is shown to be better than. Control maps are no methods, and are left out.
        doubtful: Methods that are not shown to be better than the random control.
        tested: The fewest and the most images on which two of all were compared; None where there were no two.
        few: Images that can show nothing, so that nothing is marked; None where they can.
        apart: Whether methods were judged on different images, so that no best is marked.
    """

    best: frozenset[str]
    doubtful: frozenset[str]
    tested: tuple[int, int] | None
    few: int | None = None
    apart: bool = False


def verdicts(names: Sequence[str], tested: PairTests, higher: bool) -> Verdict:
    """What tests of all pairs show.

    Pairs of methods are corrected (Holm) for these pairs alone, and those with the random control for these: a control
    that happens to do well by chance, and pairs of controls, would otherwise take from what can be shown of methods.

    Args:
        names: Methods and controls as they are called in tables.
        tested: Of them.
        higher: Whether higher is better.
    """
    methods = [m for m, name in enumerate(names) if not is_control(name) and bool(tested.counts[m])]
    spans = tested.n[tested.n > 0].tolist()
    images = (min(spans), max(spans)) if spans else None
    if not methods or images is None:
        return Verdict(frozenset(), frozenset(), images)
    own, doubtful = tested.among(methods), frozenset[str]()
    comparisons = max(len(own.n), len(methods) if RANDOM in names else 0)
    if comparisons * least_p(images[1]) >= _LEVEL:
        return Verdict(frozenset(), frozenset(), images, images[1])
    if RANDOM in names and bool(tested.counts[list(names).index(RANDOM)]):
        gain, p = tested.against(list(names).index(RANDOM), methods)
        above = ((gain > 0) if higher else (gain < 0)) & (p < _LEVEL)
        doubtful = frozenset(names[m] for m, fine in zip(methods, above.tolist(), strict=True) if not fine)
    best = marked(own, higher, _LEVEL) if len(methods) > 1 else (True,)
    return Verdict(frozenset(names[m] for m, one in zip(methods, best, strict=True) if one), doubtful, images)


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
