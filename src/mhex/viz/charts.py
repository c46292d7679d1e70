"""Two methods against each other, patch by patch or word by word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mhex.errors import ArgumentError
from mhex.explanation import Explanation
from mhex.viz.colour import INK, MUTED
from mhex.viz.grid import check_same_input
from mhex.viz.sheet import MARGIN, Sheet, drawable, font, text_width, wrap

_ROW = 0.34
_DOTS = 400
_LINE = "#d9d6d0"
_DOT = "#c4662b"
_NAMES = 2.4  # inches, the most that names of blocks may take


def cosine_figure(cosine: Tensor, names: Sequence[str]) -> Sheet:
    """Draw the cosines of every block: a dot per sample, the middle half as a bar, the median as a line.

    Args:
        cosine: (N, L).
        names: Of the L blocks, first to last.
    """
    values = _numbers(cosine)
    if values.shape[1:] != (len(names),) or not values.size:
        raise ArgumentError(f"Expected cosines (N, {len(names)}), one column per name, but got {values.shape}.")
    notes = "Dots are samples, bars their middle half, dark lines medians. The first block is at the top."
    if len(values) > _DOTS:
        notes += f" {_DOTS} of {len(values)} samples are drawn as dots; bars and medians count all."
    end = next((end for end in (0.1, 0.2, 0.5) if np.nanmax(np.abs(values)) <= end), 1.0)
    if end < 1:
        notes += f" The axis ends at {end:g}, where no sample lies beyond."
    chart = _Chart(names, 1, 4.4, "Do gate and head pull the same way?", notes, right=1.25)
    axes = chart.axes(0, "cosine of the two pulls", (-1.04 * end, 1.04 * end))
    axes.set_xticks([-end, -end / 2, 0, end / 2, end])
    drawn = values[np.linspace(0, len(values) - 1, min(len(values), _DOTS)).astype(int)]
    # Multiples of the golden ratio spread the dots evenly over the row, the same way in every picture.
    shift = 0.5 * ((np.arange(len(drawn)) * 0.6180339887) % 1 - 0.5) if len(drawn) > 1 else np.zeros(1)
    for row in range(len(names)):
        low, middle, high = np.nanpercentile(values[:, row], [25, 50, 75])
        axes.scatter(drawn[:, row], row + shift, s=9, color=_DOT, alpha=0.35, linewidths=0, zorder=2)
        axes.plot([low, high], [row, row], color=INK, linewidth=6, alpha=0.4, solid_capstyle="butt", zorder=3)
        axes.plot([middle, middle], [row - 0.26, row + 0.26], color=INK, linewidth=1.8, zorder=4)
        agree = 100 * float(np.mean(values[:, row] > 0))
        chart.beside(row, f"{middle:+.2f}".replace("-", "\N{MINUS SIGN}"), f"{agree:.0f} % > 0")
    chart.beside(-1, "median", "")
    chart.ends(0, "against each other", "the same way")
    return chart.sheet


def forest_figure(rows: Sequence[tuple[str, str, float, float, float]], note: str = "") -> Sheet:
    """Draw correlations with their intervals, one panel per variable and one line per block.

    Args:
        rows: Block, variable, coefficient, lower and upper end.
        note: A sentence below.
    """
    if not rows:
        raise ArgumentError("Expected at least one correlation to draw, but got none.")
    names = list(dict.fromkeys(row[0] for row in rows))
    variables = list(dict.fromkeys(row[1] for row in rows))
    note = " ".join(filter(None, [note, "Hollow: the interval holds 0."]))
    if undefined := sum(bool(np.isnan(row[2])) for row in rows):
        note += f" {undefined} coefficients are not defined: a variable does not vary, or there are too few samples."
    chart = _Chart(
        names,
        len(variables),
        min(2.6, max(1.6, 10 / len(variables))),
        "Correlation with the cosine of gate and head",
        note,
    )
    limit = np.nanmax([0.1, *(abs(x) for row in rows for x in row[2:] if not np.isnan(x))])
    limit = min(1.04, 1.1 * float(limit))  # one scale for all panels
    for panel, variable in enumerate(variables):
        axes = chart.axes(panel, f"r with {variable}", (-limit, limit))
        axes.locator_params(axis="x", nbins=5)
        for block, other, r, low, high in rows:
            if other != variable or np.isnan(r):
                continue
            row = names.index(block)
            axes.plot([low, high], [row, row], color=INK, linewidth=1.3, zorder=2)
            face = "white" if low <= 0 <= high else _DOT
            axes.plot([r], [row], "o", color=INK, markerfacecolor=face, markersize=6, markeredgewidth=1.1, zorder=3)
    return chart.sheet


class _Chart:
    """Panels that share the names of blocks at their left."""

    def __init__(
        self, names: Sequence[str], panels: int, panel: float, title: str, note: str, right: float = 0.0
    ) -> None:
        self.names, self.panel, self.right = names, panel, right
        self.left = MARGIN + 0.12 + min(_NAMES, max(text_width(name, 9) for name in names))
        self.gap, self.top = 0.25, MARGIN + 0.5
        self.height = _ROW * len(names) + 0.1
        width = max(self.left + panels * (panel + self.gap) - self.gap + right + 2 * MARGIN, 4.6)
        room = width - 2 * MARGIN
        headings = wrap(title, room, 12, most=2, bold=True)
        lines = wrap(note, room, 7.5, most=4)
        self.top += 0.22 * (len(headings) - 1)
        below = 0.62
        self.sheet = Sheet(width, self.top + self.height + below + 0.18 * len(lines) + MARGIN / 2)
        for number, heading in enumerate(headings):
            self.sheet.write(MARGIN, MARGIN + 0.14 + 0.22 * number, heading, 12, bold=True)
        for row, name in enumerate(names):
            shown = _ending(name, _NAMES)
            self.sheet.write(self.left - 0.12 - text_width(shown, 9), self._line(row), shown, 9)
        for number, line in enumerate(lines):
            y = self.top + self.height + below + 0.18 * number
            self.sheet.write(MARGIN, y, line, 7.5, MUTED)

    def _line(self, row: int) -> float:
        return self.top + 0.05 + _ROW * (row + 0.5) + 0.045

    def axes(self, panel: int, label: str, limits: tuple[float, float]) -> Any:
        """Axes of one panel; blocks are at 0, 1, ... from the top."""
        width, height = self.sheet.get_size_inches()
        x = self.left + panel * (self.panel + self.gap)
        box = (x / width, 1 - (self.top + self.height) / height, self.panel / width, self.height / height)
        axes = self.sheet.add_axes(box, label="chart")
        axes.set_xlim(*limits)
        span = 0.5 + 0.05 / _ROW
        axes.set_ylim(len(self.names) - 1 + span, -span)
        axes.set_yticks([])
        axes.set_xlabel(drawable(label), fontproperties=font(9), color=INK, parse_math=False)
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        axes.spines["bottom"].set_color(_LINE)
        axes.tick_params(axis="x", colors=MUTED, length=3)
        for tick in axes.get_xticklabels():
            tick.set_fontproperties(font(8))
        axes.axvline(0, color=MUTED, linewidth=0.9, zorder=1)
        for row in range(len(self.names)):
            axes.axhline(row, color=_LINE, linewidth=0.6, zorder=0)
        return axes

    def beside(self, row: int, first: str, second: str) -> None:
        """Numbers to the right of the last panel; row -1 is the line above the first."""
        x = self.left + self.panel + 0.14
        self.sheet.write(x, self._line(row), first, 8, INK if row >= 0 else MUTED)
        self.sheet.write(x + 0.48, self._line(row), second, 8, MUTED)

    def ends(self, panel: int, left: str, right: str) -> None:
        """Words below the two ends of a panel's axis."""
        x = self.left + panel * (self.panel + self.gap)
        y = self.top + self.height + 0.4
        self.sheet.write(x, y, left, 8, MUTED)
        self.sheet.write(x + self.panel - text_width(right, 8), y, right, 8, MUTED)


def _ending(name: str, room: float) -> str:
    """As much of the end of a name as fits: its numbers tell it from the others."""
    start = next(i for i in range(len(name) + 1) if text_width(name[i:], 9) <= room - (0.12 if i else 0))
    return f"…{name[start:]}" if start else name


def _numbers(values: Tensor) -> NDArray[np.float64]:
    return np.asarray(values.detach().double().cpu().numpy())


_SIDE = 4.2
_MARK = "#c4662b"
_MOST = 20_000  # dots; more only make the file larger


def scatter(first: Explanation, second: Explanation, *, title: str = "") -> Sheet:
    """Draw the scores of one explanation against those of another of the same input: a dot per patch or word.

    With `attention` along and `cdam` up this is the picture of the CDAM paper: where no head attends, nothing is said
    about the class.

    Args:
        first: Along.
        second: Up; of the same batch, on the same grid and for the same targets.
        title: A heading.

    Raises:
        ArgumentError: If their scores do not belong together.
    """
    check_same_input([first, second])
    if first.scores.shape != second.scores.shape:
        raise ArgumentError(
            f"Expected two explanations of the same input on the same grid, but {first.method!r} has scores "
            f"{tuple(first.scores.shape)} and {second.method!r} {tuple(second.scores.shape)}."
        )
    along, up = _values(first), _values(second)
    total = len(along)
    varies = bool(along.std() > 0 and up.std() > 0)
    r = float(np.mean((along - along.mean()) * (up - up.mean())) / (along.std() * up.std())) if varies else 0.0
    shown = np.linspace(0, total - 1, min(total, _MOST)).astype(int)
    unit = "patches" if first.modality == "image" else "tokens"
    said = f"Pearson r = {r:.2f} over " if varies else "No correlation: one of the two does not vary over "
    note = f"{said}{total} {unit}." + (f" {_MOST} of them are drawn." if total > _MOST else "")
    heading = wrap(title or f"{second.method} against {first.method}", _SIDE + 0.6, 12, most=2, bold=True)
    top = MARGIN + 0.3 + 0.22 * (len(heading) - 1)
    lines = wrap(note, _SIDE + 0.6, 7.5, most=2)
    sheet = Sheet(_SIDE + 1.1, top + _SIDE + 0.75 + 0.18 * len(lines))
    for number, line in enumerate(heading):
        sheet.write(MARGIN, MARGIN + 0.14 + 0.22 * number, line, 12, bold=True)
    width, height = sheet.get_size_inches()
    axes = sheet.add_axes((0.85 / width, 1 - (top + _SIDE) / height, _SIDE / width, _SIDE / height), label="scatter")
    axes.scatter(along[shown], up[shown], s=7, color=_MARK, alpha=0.3, linewidths=0, zorder=2)
    axes.axhline(0, color=MUTED, linewidth=0.8, zorder=1)
    axes.axvline(0, color=MUTED, linewidth=0.8, zorder=1)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.locator_params(nbins=6)
    axes.set_xlabel(drawable(first.method), fontproperties=font(9), color=INK, parse_math=False)
    axes.set_ylabel(drawable(second.method), fontproperties=font(9), color=INK, parse_math=False)
    for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        label.set_fontproperties(font(8))
    for number, line in enumerate(lines):
        sheet.write(MARGIN, top + _SIDE + 0.62 + 0.18 * number, line, 7.5, MUTED)
    return sheet


def _values(explanation: Explanation) -> NDArray[np.float64]:
    """All scores of patches or words, (N,)."""
    scores = explanation.scores.detach().double().cpu()
    if explanation.scored is not None:
        mask = explanation.scored.cpu()
        scores = scores[(mask[:, None] if explanation.several else mask).expand_as(scores)]
    return np.asarray(scores.reshape(-1).numpy())
