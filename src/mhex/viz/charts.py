"""Charts: rows of blocks or methods, curves with bands, and two methods against each other."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.cbook import boxplot_stats
from matplotlib.lines import Line2D
from numpy.typing import NDArray
from torch import Tensor

from mhex._settings import check_that
from mhex.viz.captions import Drawable, check_same_input
from mhex.viz.colour import INK, MUTED
from mhex.viz.layout import MARGIN, lay_out
from mhex.viz.letters import drawable, font, shorten, text_width, wrap

_LINE = "#d9d6d0"
_DOT = "#c4662b"
_DOTS = 400  # samples drawn in a row of cosines
_MOST_DOTS = 20_000  # in a scatter; more only make the file larger
_SIDE = 4.2  # of a scatter, in inches
_NAMES = 2.4  # the most that names of rows may take
_WIDTH = 3.75  # of the charts of pages: readable in one column of a phone, two beside each other elsewhere
# Colours that any kind of colour vision tells apart, dark enough on white and light enough on black.
_PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b58900", "#3fa0d8", "#7a5bb5", "#8a5a2b")
Dashes = tuple[float, ...]  # lengths of dashes and gaps
_DASHES: tuple[Dashes, ...] = ((), (9, 3), (2, 2.5), (9, 3, 2, 3))
_GREYS: tuple[tuple[str, Dashes], ...] = (("#6f6f6f", (5, 4)), ("#939393", (1.5, 3)), ("#818181", (9, 3, 1.5, 3)))
Band = tuple[Sequence[float], Sequence[float], Sequence[float]]  # middle, low and high of a curve at each point


@dataclass(frozen=True)
class Style:
    """How a method, or a control, is drawn in all charts of a page: `#rrggbb`, and lengths of dashes and gaps."""

    colour: str
    dashes: Dashes = ()
    control: bool = False

    @property
    def linestyle(self) -> Any:
        """The dashes as matplotlib takes them."""
        return (0, tuple(length / 2 for length in self.dashes)) if self.dashes else "-"


def styles_of(methods: Sequence[str], controls: Sequence[str] = ()) -> dict[str, Style]:
    """A style for every name: colours for methods, with dashes once all colours are used, and greys for controls."""
    styles = {
        name: Style(_PALETTE[k % len(_PALETTE)], _DASHES[k // len(_PALETTE) % len(_DASHES)])
        for k, name in enumerate(methods)
    }
    return styles | {name: Style(*_GREYS[k % len(_GREYS)], control=True) for k, name in enumerate(controls)}


@dataclass(frozen=True)
class CurvePanel:
    """Curves by name over the points `x`, a heading, and what the axes below and beside them show."""

    title: str
    below: str
    beside: str
    x: Sequence[float]
    bands: Mapping[str, Band]


def curve_figure(panels: Sequence[CurvePanel], styles: Mapping[str, Style], key: bool = False) -> Any:
    """Draw panels of curves with bands, at most two side by side, controls behind the others; a key may stand below."""
    columns, height = min(2, len(panels)), 2.6
    width = columns * _WIDTH
    names = [name for name in styles if any(name in panel.bands for panel in panels)]
    across = max(1, int(width / (max((text_width(name, 8) for name in names), default=1.0) + 0.5)))
    below = 0.2 * -(-len(names) // across) + 0.15 if key else 0.0
    from mhex.viz.sheet import Sheet

    sheet = Sheet(width, height * -(-len(panels) // columns) + below)
    for place, panel in enumerate(panels):
        x, y = place % columns * _WIDTH, 0.1 + place // columns * height
        titles = wrap(panel.title, _WIDTH - 0.2, 9.5, most=2, bold=True)
        for row, title in enumerate(titles):
            sheet.write(x + 0.08, y + 0.1 + 0.18 * row, title, 9.5, bold=True)
        start = 0.24 + 0.18 * (len(titles) - 1)
        axes = sheet.axes_at(x + 0.7, y + start, _WIDTH - 0.85, height - start - 0.6, "curves")
        _plain(axes, panel.below, panel.beside)
        axes.grid(axis="y", color=_LINE, linewidth=0.6)
        axes.set_axisbelow(True)
        pale = max(0.05, min(0.2, 0.6 / max(1, len(panel.bands))))  # many bands on each other would hide the lines
        for name, (middle, low, high) in panel.bands.items():
            style, front = styles[name], 0 if styles[name].control else 1
            axes.fill_between(panel.x, low, high, color=style.colour, alpha=pale, linewidth=0, zorder=2 + front)
            line = {"color": style.colour, "linestyle": style.linestyle, "linewidth": 1.2 + 0.4 * front}
            axes.plot(panel.x, middle, label=name, zorder=4 + front, **line)
        axes.set_xlim(min(panel.x), max(panel.x))
    if key:
        handles = [Line2D([], [], color=styles[n].colour, linestyle=styles[n].linestyle, linewidth=1.6) for n in names]
        corner = (0.1 / width, 0.06 / sheet.get_figheight())
        texts = [drawable(name) for name in names]
        sheet.legend(handles, texts, loc="lower left", bbox_to_anchor=corner, ncols=across, prop=font(8), frameon=False)
    return sheet


def box_figure(title: str, below: str, rows: Mapping[str, Sequence[float]], styles: Mapping[str, Style]) -> Any:
    """Draw a box for each method: quartiles, median and mean, whiskers to 1.5 box lengths, and all beyond as dots.

    Args:
        title: Heading.
        below: What the axis shows.
        rows: Values by name, from top to bottom; values that are not finite are left out.
        styles: Of all names. Controls are set apart from the others.
    """
    chart = _method_chart(title, rows, styles)
    axes = chart.axes(0, below)
    for place, (name, values) in zip(chart.places, rows.items(), strict=True):
        finite = [value for value in values if math.isfinite(value)]
        if not finite:
            continue
        # Axes.boxplot would read the user's settings, and load pyplot with them.
        (box,) = boxplot_stats(finite)
        colour, line = styles[name].colour, {"color": styles[name].colour, "linewidth": 1.1, "zorder": 2}
        axes.barh(place, box["q3"] - box["q1"], 0.55, box["q1"], color=(colour, 0.2), edgecolor=colour, linewidth=1.1)
        for ends in (("whislo", "q1"), ("q3", "whishi")):
            axes.plot([box[end] for end in ends], [place, place], **line)
        axes.plot([box["med"]] * 2, [place - 0.27, place + 0.27], **{**line, "linewidth": 1.9})
        axes.plot(box["fliers"], [place] * len(box["fliers"]), "o", color=colour, markersize=2.2, markeredgewidth=0)
        axes.plot(box["mean"], place, "D", markersize=3.6, markerfacecolor="white", markeredgecolor=INK, zorder=3)
    return chart.sheet


def bar_figure(title: str, below: str, rows: Mapping[str, tuple[float, str]], styles: Mapping[str, Style]) -> Any:
    """Draw a bar for each method on an axis of powers of ten; arguments as for `box_figure`.

    The rows have a value above 0 each, and what is written beside its bar.
    """
    chart = _method_chart(title, rows, styles)
    axes = chart.axes(0, below)
    values = [value for value, _ in rows.values()]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)) + 1e-9)
    axes.set_xscale("log")
    # Room for the words beside the longest bar.
    axes.set_xlim(10.0**low, 10.0 ** (low + max(1, high - low) * 1.25))
    axes.minorticks_off()
    axes.xaxis.set_major_formatter("{x:g}")
    bars = axes.barh(chart.places, values, height=0.6, color=[styles[name].colour for name in rows], zorder=2)
    axes.bar_label(bars, [text for _, text in rows.values()], padding=3, fontproperties=font(8), color=INK)
    return chart.sheet


def _method_chart(title: str, rows: Collection[str], styles: Mapping[str, Style]) -> _RowChart:
    names = [shorten(name, 1.5, 9) for name in rows]
    panel = _WIDTH - max(text_width(name, 9) for name in names) - 2 * MARGIN - 0.12
    return _RowChart(names, title, "", panel, row=0.21, size=9.5, controls=sum(styles[name].control for name in rows))


def cosine_figure(cosine: Tensor, names: Sequence[str]) -> Any:
    """Draw the cosines of every block: a dot per sample, the middle half as a bar, the median as a line.

    Args:
        cosine: (N, L).
        names: Of the L blocks, first to last.
    """
    values = np.asarray(cosine.detach().double().cpu().numpy())
    right = values.shape[1:] == (len(names),) and values.size > 0
    check_that(right, f"cosines (N, {len(names)}), one column per name", values.shape)
    notes = "Dots are samples, bars their middle half, dark lines medians. The first block is at the top."
    if len(values) > _DOTS:
        notes += f" {_DOTS} of {len(values)} samples are drawn as dots; bars and medians count all."
    end = next((end for end in (0.1, 0.2, 0.5) if np.nanmax(np.abs(values)) <= end), 1.0)
    if end < 1:
        notes += f" The axis ends at {end:g}, where no sample lies beyond."
    chart = _RowChart(names, "Do gate and head pull the same way?", notes, 4.4, beside=1.25)
    axes = chart.axes(0, "cosine of the two pulls", (-1.04 * end, 1.04 * end))
    axes.set_xticks([-end, -end / 2, 0, end / 2, end])
    dots = values[np.linspace(0, len(values) - 1, min(len(values), _DOTS)).astype(int)]
    # Multiples of the golden ratio spread the dots evenly over the row, the same way in every picture.
    shift = 0.5 * ((np.arange(len(dots)) * 0.6180339887) % 1 - 0.5) if len(dots) > 1 else np.zeros(1)
    for row in range(len(names)):
        low, middle, high = np.nanpercentile(values[:, row], [25, 50, 75])
        axes.scatter(dots[:, row], row + shift, s=9, color=_DOT, alpha=0.35, linewidths=0, zorder=2)
        axes.plot([low, high], [row, row], color=INK, linewidth=6, alpha=0.4, solid_capstyle="butt", zorder=3)
        axes.plot([middle, middle], [row - 0.26, row + 0.26], color=INK, linewidth=1.8, zorder=4)
        agree = 100 * float(np.mean(values[:, row] > 0))
        chart.write_beside(row, f"{middle:+.2f}".replace("-", "\N{MINUS SIGN}"), f"{agree:.0f} % > 0")
    chart.write_beside(-1, "median", "")
    y = chart.top + chart.height + 0.4
    chart.sheet.write(chart.start, y, "against each other", 8, MUTED)
    chart.sheet.write(chart.start + chart.panel - text_width("the same way", 8), y, "the same way", 8, MUTED)
    return chart.sheet


def forest_figure(rows: Sequence[tuple[str, str, float, float, float]], note: str = "") -> Any:
    """Draw correlations with their intervals, one panel per variable and one line per block.

    Args:
        rows: Block, variable, coefficient, lower and upper end.
        note: A sentence below.
    """
    check_that(bool(rows), "at least one correlation to draw", "none")
    names = list(dict.fromkeys(row[0] for row in rows))
    variables = list(dict.fromkeys(row[1] for row in rows))
    note = " ".join(filter(None, [note, "Hollow: the interval holds 0."]))
    if undefined := sum(bool(np.isnan(row[2])) for row in rows):
        note += f" {undefined} coefficients are not defined: a variable does not vary, or there are too few samples."
    panel = min(2.6, max(1.6, 10 / len(variables)))
    title = "Correlation with the cosine of gate and head"
    chart = _RowChart(names, title, note, panel, panels=len(variables))
    limit = np.nanmax([0.1, *(abs(x) for row in rows for x in row[2:] if not np.isnan(x))])
    limit = min(1.04, 1.1 * float(limit))  # one scale for all panels
    for place, variable in enumerate(variables):
        axes = chart.axes(place, f"r with {variable}", (-limit, limit))
        axes.locator_params(axis="x", nbins=5)
        for block, name, r, low, high in rows:
            if name != variable or np.isnan(r):
                continue
            row = names.index(block)
            axes.plot([low, high], [row, row], color=INK, linewidth=1.3, zorder=2)
            face = "white" if low <= 0 <= high else _DOT
            axes.plot([r], [row], "o", color=INK, markerfacecolor=face, markersize=6, markeredgewidth=1.1, zorder=3)
    return chart.sheet


class _RowChart:
    """Panels that share the names of their rows at the left, with a heading above and sentences below.

    Lengths are in inches: of a panel, of a row, and of the room that is kept free beside the last panel. The last
    `controls` names are grey and set apart from the others.
    """

    def __init__(
        self,
        names: Sequence[str],
        title: str,
        note: str,
        panel: float,
        panels: int = 1,
        beside: float = 0.0,
        row: float = 0.34,
        size: float = 12,
        controls: int = 0,
    ) -> None:
        self.panel, self.row, self.gap = panel, row, 0.25
        count = len(names) - controls
        apart = 0.5 if controls and count else 0.0
        self.places = [place + (apart if place >= count else 0.0) for place in range(len(names))]
        self.rule = self.places[count] - 0.75 if apart else None
        names = [_ending(name, _NAMES) for name in names]
        self.start = MARGIN + 0.12 + max(text_width(name, 9) for name in names)
        self.height = row * (self.places[-1] + 1) + 0.1
        width = self.start + panels * (panel + self.gap) - self.gap + beside + MARGIN
        above, below = (0.18 if beside else 0.05), (0.5 if note else 0.3)
        self.sheet, top = lay_out(max(width, _WIDTH), above + self.height + below, title, [note], heading_size=size)
        self.top = top + above
        for place, name in zip(self.places, names, strict=True):
            ink = MUTED if place > count else INK
            self.sheet.write(self.start - 0.12 - text_width(name, 9), self._line(place), name, 9, ink)

    def _line(self, place: float) -> float:
        return self.top + 0.05 + self.row * (place + 0.5) + 0.045

    def axes(self, panel: int, label: str, limits: tuple[float, float] | None = None) -> Any:
        """Axes of one panel, whose rows are at `places`; with limits, they have a line at 0."""
        x = self.start + panel * (self.panel + self.gap)
        axes = self.sheet.axes_at(x, self.top, self.panel, self.height, "chart")
        margin = 0.5 + 0.05 / self.row
        axes.set_ylim(self.places[-1] + margin, -margin)
        axes.set_yticks([])
        _plain(axes, label)
        axes.spines["left"].set_visible(False)
        if limits is not None:
            axes.set_xlim(*limits)
            axes.axvline(0, color=MUTED, linewidth=0.9, zorder=1)
            for place in self.places:
                axes.axhline(place, color=_LINE, linewidth=0.6, zorder=0)
        else:
            axes.grid(axis="x", color=_LINE, linewidth=0.6)
            axes.set_axisbelow(True)
        if self.rule is not None:
            axes.axhline(self.rule, color=MUTED, linewidth=0.8)
        return axes

    def write_beside(self, row: int, first: str, second: str) -> None:
        """Write numbers to the right of the last panel; row -1 is the line above the first."""
        x = self.start + self.panel + 0.14
        self.sheet.write(x, self._line(row), first, 8, INK if row >= 0 else MUTED)
        self.sheet.write(x + 0.48, self._line(row), second, 8, MUTED)


def _ending(name: str, room: float) -> str:
    """As much of the end of a name as fits: its numbers tell it from the others."""
    start = next(i for i in range(len(name) + 1) if text_width(name[i:], 9) <= room - (0.12 if i else 0))
    return f"…{name[start:]}" if start else name


def _plain(axes: Any, below: str, beside: str = "") -> None:
    """Axes without a frame, in the library's font and colours, whatever the user's settings of matplotlib are."""
    axes.patch.set_visible(False)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("bottom", "left"))
        spine.set(color=MUTED if side == "left" else _LINE, linewidth=0.8)
    axes.set_xlabel(drawable(below), fontproperties=font(9), color=INK, parse_math=False)
    axes.set_ylabel(drawable(beside), fontproperties=font(9), color=INK, parse_math=False)
    axes.locator_params(nbins=6)
    axes.tick_params(colors=MUTED, length=3, labelsize=8, labelfontfamily="DejaVu Sans")


def scatter(first: Drawable, second: Drawable, *, title: str = "") -> Any:
    """Draw the scores of one explanation against those of another of the same input: a dot per patch or word.

    With `attention` along and `cdam` up this is the picture of the CDAM paper: where no head attends, nothing is said
    about the class.

    Args:
        first: Along.
        second: Up; of the same batch, on the same grid and for the same targets.
        title: A heading.
    """
    check_same_input([first, second])
    shapes = [tuple(explanation.scores.shape) for explanation in (first, second)]
    check_that(shapes[0] == shapes[1], "explanations on the same grid", f"scores {shapes[0]} and {shapes[1]}")
    along, up = _flat_scores(first), _flat_scores(second)
    total = len(along)
    varies = bool(along.std() > 0 and up.std() > 0)
    r = float(np.corrcoef(along, up)[0, 1]) if varies else 0.0
    places = np.linspace(0, total - 1, min(total, _MOST_DOTS)).astype(int)
    unit = "patches" if first.modality == "image" else "tokens"
    sentence = f"Pearson r = {r:.2f} over " if varies else "No correlation: one of the two does not vary over "
    note = f"{sentence}{total} {unit}." + (f" {_MOST_DOTS} of them are drawn." if total > _MOST_DOTS else "")
    heading = title or f"{second.method} against {first.method}"
    sheet, top = lay_out(_SIDE + 1.1, _SIDE + 0.5, heading, [note])
    axes = sheet.axes_at(0.85, top, _SIDE, _SIDE, "scatter")
    axes.scatter(along[places], up[places], s=7, color=_DOT, alpha=0.3, linewidths=0, zorder=2)
    axes.axhline(0, color=MUTED, linewidth=0.8, zorder=1)
    axes.axvline(0, color=MUTED, linewidth=0.8, zorder=1)
    _plain(axes, first.method, second.method)
    return sheet


def _flat_scores(explanation: Drawable) -> NDArray[np.float64]:
    """All scores of patches or words, (N,)."""
    scores = explanation.scores.detach().double().cpu()
    if explanation.scored is not None:
        mask = explanation.scored.cpu()
        scores = scores[(mask[:, None] if explanation.several else mask).expand_as(scores)]
    return np.asarray(scores.reshape(-1).numpy())
