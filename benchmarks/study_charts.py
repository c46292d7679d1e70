"""Curves with bands for the pages of studies, in the look of the library's other charts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mhex.viz.charts import Band, styles_of
from mhex.viz.colour import INK, MUTED
from mhex.viz.layout import MARGIN
from mhex.viz.letters import font, text_width, wrap
from mhex.viz.sheet import Sheet
from study_page import interval_of

_HEIGHT = 3.0
_WIDTHS = {1: 4.6, 2: 3.4}  # of a panel by their number
_NARROW = 2.5
_AXIS, _BELOW = 0.62, 0.5
_LINE = "#d9d6d0"
_APART = 0.17  # inches between names at the ends of curves


def bands_of(curves: Mapping[str, Tensor], seed: int = 0) -> dict[str, Band]:
    """Mean and bootstrap interval at each point of curves (n, S)."""
    found: dict[str, Band] = {}
    for name, values in curves.items():
        points = [interval_of(column, seed) for column in values.mT]
        found[name] = ([p.mean for p in points], [p.low for p in points], [p.high for p in points])
    return found


def band_figure(
    title: str,
    x: Sequence[float],
    panels: Mapping[str, Mapping[str, Band]],
    below: str,
    note: str,
    controls: Sequence[str] = (),
) -> Sheet:
    """Panels side by side, each with curves, their bands, and names at the ends of the curves.

    Args:
        title: Heading.
        x: Places of the points, common to all.
        panels: What the vertical axis shows, and the bands by name; a name has one colour in all panels.
        below: What the horizontal axis shows.
        note: Sentences below.
        controls: Names that are drawn in grey.
    """
    names = list(dict.fromkeys(name for bands in panels.values() for name in bands))
    styles = styles_of([name for name in names if name not in controls], list(controls))
    room = max(text_width(name, 8.5) for name in names) + 0.15
    panel = _WIDTHS.get(len(panels), _NARROW)
    width = MARGIN + len(panels) * (_AXIS + panel + room) + MARGIN
    lines = wrap(note, width - 2 * MARGIN, 7.5, most=4)
    top = MARGIN + 0.4
    sheet = Sheet(width, top + _HEIGHT + _BELOW + 0.18 * len(lines) + MARGIN)
    sheet.write(MARGIN, MARGIN + 0.14, title, 12, bold=True)
    for place, (beside, bands) in enumerate(panels.items()):
        left = MARGIN + _AXIS + place * (_AXIS + panel + room)
        axes = _axes(sheet, (left, top, panel), below, beside)
        for name, (middle, low, high) in bands.items():
            style = styles[name]
            axes.fill_between(x, low, high, color=style.colour, alpha=max(0.1, 0.3 / len(bands)), linewidth=0, zorder=2)
            axes.plot(
                x,
                middle,
                color=style.colour,
                linestyle=style.linestyle,
                linewidth=1.8,
                marker="o",
                markersize=2.6,
                zorder=3,
            )
        axes.set_xlim(min(x), max(x))
        if axes.get_ylim()[0] < 0 < axes.get_ylim()[1]:
            axes.axhline(0, color=MUTED, linewidth=0.8, zorder=1)
        ends = {name: band[0][-1] for name, band in bands.items() if math.isfinite(band[0][-1])}
        for name, y in _spread(ends, axes.get_ylim()).items():
            sheet.write(left + panel + 0.07, top + _HEIGHT - y + 0.04, name, 8.5, styles[name].colour)
    for number, line in enumerate(lines):
        sheet.write(MARGIN, top + _HEIGHT + _BELOW + 0.1 + 0.18 * number, line, 7.5, MUTED)
    return sheet


def _axes(sheet: Sheet, place: tuple[float, float, float], below: str, beside: str) -> Any:
    """Axes at (left, top, width) in inches."""
    left, top, panel = place
    width, height = sheet.get_size_inches()
    box = (left / width, 1 - (top + _HEIGHT) / height, panel / width, _HEIGHT / height)
    axes = sheet.add_axes(box, label=beside)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.grid(axis="y", color=_LINE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xlabel(below, fontproperties=font(9), color=INK)
    axes.set_ylabel(beside, fontproperties=font(9), color=INK)
    axes.locator_params(nbins=7)
    axes.tick_params(colors=MUTED, length=3, labelsize=8)
    return axes


def _spread(ends: Mapping[str, float], limits: tuple[float, float]) -> dict[str, float]:
    """Places of names in inches above the axis, near the ends of their curves and without one on another."""
    inches = {name: (y - limits[0]) / (limits[1] - limits[0]) * _HEIGHT for name, y in ends.items()}
    order = sorted(inches, key=lambda name: inches[name])
    placed = [inches[name] for name in order]
    for k in range(1, len(placed)):
        placed[k] = max(placed[k], placed[k - 1] + _APART)
    over = max(0.0, placed[-1] - _HEIGHT) if placed else 0.0
    for k in reversed(range(len(placed))):  # names pushed over the top push the others down
        most = _HEIGHT - _APART * (len(placed) - 1 - k) if over else placed[k]
        placed[k] = min(placed[k], most)
    return dict(zip(order, placed, strict=True))


def stacked(parts: Sequence[Tensor]) -> Tensor:
    """Batches of values (B, S) as one tensor (n, S), float64, on the CPU."""
    return torch.cat([part.double().cpu() for part in parts])
