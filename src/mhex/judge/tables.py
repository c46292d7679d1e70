"""Tables of a report, for the terminal and for papers: values, intervals, and what tests of all pairs show."""

import math
import re
import shutil
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mhex._printable import escaped, printable
from mhex._settings import check_that
from mhex.judge.controls import RANDOM, is_control
from mhex.metrics.base import PerImage
from mhex.stats.comparison import PairTests, least_p, marked, pair_tests
from mhex.stats.intervals import Summary, interval_of

Field = list[str]  # lines of it
Numbers = Mapping[str, Tensor]  # of each method, (n, J), NaN where an image has none

DAGGER = "†"
FEWEST = 6  # samples of an interval: all of fewer lie on one side of the middle in more than 5 % of all cases
_LEVEL = 0.05
_ARROWS = {None: "", True: " ↑", False: " ↓"}
_NAME = 32  # signs in a line of the first column, where a table does not fit
_HEAD = 16  # and at least of a heading
_LATEX: dict[str, str | int | None] = {
    **{sign: f"\\{sign}" for sign in "{}$&%#_"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "—": "---"},
    **{"±": r"$\pm$", DAGGER: r"$\dagger$", "↑": r"$\uparrow$", "↓": r"$\downarrow$"},
}


@dataclass(frozen=True)
class Verdict:
    """What is shown by one number of a metric; nothing where neither side is better."""

    # Methods that no other is shown to be better than; control maps are no methods, and are left out.
    best: frozenset[str] = frozenset()
    doubtful: frozenset[str] = frozenset()  # methods that are not shown to be better than the random control
    # The fewest and the most images on which two of all were compared; None where there were no two.
    tested: tuple[int, int] | None = None
    few: int | None = None  # images that can show nothing, so that nothing is marked; None where they can
    apart: bool = False  # whether methods were judged on different images, so that no best is marked


@dataclass(frozen=True)
class Cell:
    """One number of a table."""

    method: str  # its name in tables
    metric: str  # its name in the report
    output: str  # which of its outputs
    value: float  # value over all images that count
    low: float  # ends of its interval, with the next
    high: float
    n: int  # images that count
    skipped: int  # images that do not
    higher: bool | None  # whether higher is better; None where neither is
    verdict: Verdict = Verdict()  # what the column shows
    skips: str = ""  # which images do not count, in a few words
    share: bool = False  # whether it is a share of hits, whose interval is not symmetric

    @property
    def marked(self) -> bool:
        """Whether it is a method that no other is shown to be better than."""
        return self.method in self.verdict.best

    @property
    def doubtful(self) -> bool:
        """Whether it is a method that is not shown to be better than random maps."""
        return self.method in self.verdict.doubtful

    @property
    def tested(self) -> tuple[int, int] | None:
        """The fewest and the most images on which two methods were compared."""
        return self.verdict.tested

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
        width, dagger = self.high - self.low, DAGGER if self.doubtful else ""
        # Two figures of the interval have a meaning.
        digits = max(0, min(6, 1 - math.floor(math.log10(width / 2)))) if 0 < width < math.inf else 3
        value = f"{self.value:.{digits}f}"
        if self.share and not math.isnan(width):
            return f"{value} ({self.low:.{digits}f} to {self.high:.{digits}f}){dagger}"
        few = self.n < FEWEST or math.isnan(width)
        return f"{value} ± {'—' if few else f'{width / 2:.{digits}f}'}{dagger}"


def per_image(metric: PerImage, numbers: Numbers, output: int) -> dict[str, Tensor]:
    """The value of each image by itself, (n,), for each method; NaN where there is none."""
    # An image counts with all of its numbers or not at all, as in the table.
    finite = {name: rows.where(rows.isfinite().all(1, keepdim=True), torch.nan) for name, rows in numbers.items()}
    return {name: metric.summary(rows[:, None, :])[..., output] for name, rows in finite.items()}


def compared(metric: PerImage, numbers: Numbers, names: Sequence[str], output: int) -> tuple[Tensor, Summary | None]:
    """What is compared of M methods, (n, M) or (n, M, J), and how a value of the data set is made of it."""
    if metric.additive:
        values = per_image(metric, numbers, output)
        return torch.stack([values[name] for name in names], 1), None
    # Such as the ratio of sums over all images.
    table = torch.stack([numbers[name] for name in names], 1)
    return table, lambda rows: metric.summary(rows)[..., output : output + 1]


def cells_of(
    name: str,
    metric: PerImage,
    numbers: Numbers,
    presence: Mapping[str, Tensor],
    resamples: int,
    confidence: float,
    seed: int,
    outputs: int,
) -> list[Cell]:
    """Cells of the first outputs by method, with intervals; `presence`, bool (n,), has the images it was judged on."""
    cells, spans = [], {}
    for method, rows in numbers.items():
        finite = rows[rows.isfinite().all(1)]
        spans[method] = torch.full((3, len(metric.outputs)), torch.nan, dtype=torch.float64)
        if len(finite):
            ends = interval_of(finite, metric.summary, resamples, confidence, seed, hits=metric.hits)
            spans[method] = torch.stack([metric.summary(finite), ends.low, ends.high])
    judged = [images for method, images in presence.items() if not is_control(method)]  # controls may have others
    apart = not all(torch.equal(images, judged[0]) for images in judged)
    for k, verdict in enumerate(_verdicts(metric, numbers, outputs)):
        if apart and metric.better[k] is not None:
            verdict = replace(verdict, best=frozenset(), apart=True)
        for method, rows in numbers.items():
            value, low, high = spans[method][:, k].tolist()
            n, of, up = int(rows.isfinite().all(1).sum()), metric.outputs[k], metric.better[k]
            skipped, skips = int(presence[method].sum()) - n, metric.skips
            cells.append(Cell(method, name, of, value, low, high, n, skipped, up, verdict, skips, metric.hits))
    return cells


def _verdicts(metric: PerImage, numbers: Numbers, outputs: int) -> list[Verdict]:
    """What is shown by each of the first outputs."""
    names = list(numbers)
    if metric.additive:
        tested = [pair_tests(compared(metric, numbers, names, k)[0])[0] for k in range(outputs)]
    else:  # all of them are computed at once
        table = torch.stack(list(numbers.values()), 1)
        tested = pair_tests(table, summary=lambda rows: metric.summary(rows)[..., :outputs])
    directions = zip(tested, metric.better, strict=False)
    return [Verdict() if higher is None else verdicts(names, tests, higher) for tests, higher in directions]


def verdicts(names: Sequence[str], tested: PairTests, higher: bool) -> Verdict:
    """What tests of all pairs show."""
    # Pairs of methods are corrected (Holm) for these pairs alone, and those with the random control for these: a
    # control that happens to do well by chance, and pairs of controls, would otherwise take from what can be shown of
    # methods.
    methods = [m for m, name in enumerate(names) if not is_control(name) and bool(tested.counts[m])]
    spans = tested.n[tested.n > 0].tolist()
    images = (min(spans), max(spans)) if spans else None
    if not methods or images is None:
        return Verdict(tested=images)
    among, doubtful = tested.among(methods), frozenset[str]()
    comparisons = max(len(among.n), len(methods) if RANDOM in names else 0)
    if comparisons * least_p(images[1]) >= _LEVEL:
        return Verdict(tested=images, few=images[1])
    if RANDOM in names and bool(tested.counts[list(names).index(RANDOM)]):
        gain, p = tested.against(list(names).index(RANDOM), methods)
        above = ((gain > 0) if higher else (gain < 0)) & (p < _LEVEL)
        doubtful = frozenset(names[m] for m, fine in zip(methods, above.tolist(), strict=True) if not fine)
    best = marked(among, higher, _LEVEL) if len(methods) > 1 else (True,)
    return Verdict(frozenset(names[m] for m, mark in zip(methods, best, strict=True) if mark), doubtful, images)


@dataclass(frozen=True)
class Grid:
    """A table: methods down, metrics across."""

    methods: Sequence[str]  # methods in the order of lines
    cells: Sequence[Cell]  # all of its numbers
    notes: Mapping[str, str]  # for each metric, how it was measured
    above: Sequence[str] = ()  # sentences on the run as a whole, which come before all other remarks

    @property
    def columns(self) -> dict[str, str]:
        """Headings with the direction, by those without."""
        return {cell.column: cell.column + _ARROWS[cell.higher] for cell in self.cells}

    def lines(self, plain: Callable[[str], str], bold: str) -> list[list[str]]:
        """Headings, and below them methods and their numbers; `plain` escapes texts, `bold` is the format of marks."""
        place = {(cell.method, cell.column): cell for cell in self.cells}
        lines = [[plain(text) for text in ("method", *self.columns.values())]]
        for method in self.methods:
            cells = [place.get((method, name)) for name in self.columns]
            texts = [("", False) if cell is None else (plain(cell.text), cell.marked) for cell in cells]
            lines.append([plain(method), *(bold.format(text) if mark else text for text, mark in texts)])
        return lines

    def remarks(self) -> list[str]:
        """Numbers of images, and protocols."""
        sentences = [*self.above]
        for metric, protocol in self.notes.items():
            parts = [_counts([cell for cell in self.cells if cell.metric == metric]), protocol]
            sentences.append(f"{metric}: {'; '.join(part for part in parts if part)}")
        shares = " Shares of hits have their exact interval in brackets." if any(c.share for c in self.cells) else ""
        few = any(0 < cell.n < FEWEST and not cell.share for cell in self.cells)
        sentences.append(
            f"± is half of the 95 % bootstrap interval over samples{f', from {FEWEST} of them on' if few else ''}."
            f"{shares} Marked: the best, and all that no other method is shown to be better than; control maps are "
            "never marked."
        )
        if any(cell.doubtful for cell in self.cells):
            sentences.append(f"{DAGGER} not shown to be better than {RANDOM}.")
        return sentences


def _counts(cells: Sequence[Cell]) -> str:
    """Images of a metric: those of most methods, methods that have others, and those of tests where they are fewer."""
    sizes: dict[tuple[int, int], list[str]] = {}
    for method, size in {cell.method: (cell.n, cell.skipped) for cell in cells}.items():
        sizes.setdefault(size, []).append(method)
    usual = max(sizes, key=lambda size: (len(sizes[size]), size[0]), default=None)
    parts = []
    for size in sorted(sizes, key=lambda size: (size != usual, -size[0])):
        why = f": {cells[0].skips}" if cells[0].skips else ""
        words = f"n = {size[0]}" + (f" ({size[1]} skipped{why})" if size[1] else "")
        parts.append(words if size == usual else f"{words} of {', '.join(sizes[size])}")
    tested = [(cell.tested, cell.n) for cell in cells if cell.tested is not None]
    if any(span[0] < n for span, n in tested):
        low, high = min(span[0] for span, _ in tested), max(span[1] for span, _ in tested)
        parts.append(f"pairs were tested on {low if low == high else f'{low} to {high}'} samples")
    if few := max((cell.verdict.few or 0 for cell in cells), default=0):
        parts.append(f"{few} {'sample is' if few == 1 else 'samples are'} too few to show any difference")
    if any(cell.verdict.apart for cell in cells):
        parts.append("methods were judged on different samples, so that none is marked")
    return "; ".join(parts)


def render(grid: Grid, form: str, width: int | None = None) -> str:
    """A table as `"text"`, of a terminal's width if None is given, `"markdown"`, `"latex"` or `"html"`."""
    forms = {"text": lambda grid: _text(grid, width), "markdown": _markdown, "latex": _latex, "html": _html}
    check_that(form in forms, f"form to be one of {', '.join(forms)}", repr(form))
    return printable(forms[form](grid))


def _text(grid: Grid, width: int | None) -> str:
    width = shutil.get_terminal_size().columns if width is None else width
    table, room = in_columns(grid.lines(str, "{} *"), width), max(width, 40)
    notes = [textwrap.fill(note, room, subsequent_indent="  ", break_on_hyphens=False) for note in grid.remarks()]
    return "\n".join([table, "-" * max(map(len, table.splitlines())), *notes])


def _markdown(grid: Grid) -> str:
    def plain(text: str) -> str:  # `_` inside a word has no meaning
        return re.sub(r"([\\|*<`])", r"\\\1", " ".join(text.split()))

    head, *body = (f"| {' | '.join(line)} |" for line in grid.lines(plain, "**{}**"))
    rule = "|---" * (len(grid.columns) + 1) + "|"
    return "\n".join([head, rule, *body, "", *(f"- {plain(remark)}" for remark in grid.remarks())]) + "\n"


def _latex(grid: Grid) -> str:
    def plain(text: str) -> str:
        return " ".join(text.split()).translate(str.maketrans(_LATEX))

    head, *body = (" & ".join(line) for line in grid.lines(plain, r"\textbf{{{}}}"))
    start = [r"\begin{tabular}{l" + "r" * len(grid.columns) + "}", rf"{head} \\ \hline"]
    notes = (f"% {' '.join(remark.split())}" for remark in grid.remarks())  # a comment ends with its line
    return "\n".join([*start, *(rf"{line} \\" for line in body), r"\end{tabular}", *notes]) + "\n"


def _html(grid: Grid) -> str:
    head, *body = grid.lines(escaped, "<b>{}</b>")
    kinds = [' class="control"' if is_control(method) else "" for method in grid.methods]
    rows = [f"<td>{'</td><td>'.join(line)}</td>" for line in body]
    lines = "".join(f"<tr{kind}>{row}</tr>" for kind, row in zip(kinds, rows, strict=True))
    notes = "".join(f"<li>{escaped(remark)}</li>" for remark in grid.remarks())
    names = "".join(f"<th>{name}</th>" for name in head)
    return f"<table><thead><tr>{names}</tr></thead><tbody>{lines}</tbody></table><ul>{notes}</ul>"


def in_columns(rows: Sequence[Sequence[str]], width: int) -> str:
    """A table with a line below its headings, in one piece if it fits into lines of so many signs.

    Otherwise headings and names are broken into lines, and columns that have no room are put below the others, beside
    the names again. The first row has the headings, and the first field of each row is a name.
    """
    names, *columns = ([[field] for field in column] for column in zip(*rows, strict=True))
    if _wide([names, *columns]) > width:
        names = [_broken(field[0], _NAME) for field in names]
        columns = [[_broken(head[0], max(_HEAD, _wide([body]))), *body] for head, *body in columns]
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
    glued = re.sub(r" (\S)$", "\u00a0\\1", text)  # a single sign, such as an arrow, stays with its word
    lines = textwrap.wrap(glued, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return [line.replace("\u00a0", " ") for line in lines] or [""]


def _drawn(columns: Sequence[Sequence[Field]]) -> str:
    widths, lines = [_wide([column]) for column in columns], []
    for k, fields in enumerate(zip(*columns, strict=True)):
        gaps = [[""] * (max(map(len, fields)) - len(field)) for field in fields]
        # Headings stand on the rule, all else hangs from the top.
        filled = [field + gap if k else gap + field for field, gap in zip(fields, gaps, strict=True)]
        for texts in zip(*filled, strict=True):
            lines.append("  ".join(text.ljust(width) for text, width in zip(texts, widths, strict=True)).rstrip())
        if k == 0:
            lines.append("-" * _wide(columns))
    return "\n".join(lines)
