"""Rows of pictures with titles, row labels and legends: the layout that overlays and comparisons share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mhex.viz.captions import Legend
from mhex.viz.colour import Pixels
from mhex.viz.sheet import MARGIN, Sheet, font_note, lay_out, shorten, text_width, wrap

_GAP = 0.12
_TITLE = 0.24
_TITLE_LINE = 0.16
_LABEL_WIDTH = 1.15
_TALLEST = 1.25
_NARROWEST = 1.05
_LINE = 0.2


@dataclass(frozen=True)
class Panel:
    """A picture (h, w, 3) and the line above it: a title, shortened to fit, and a tail that is always shown."""

    pixels: Pixels
    title: str = ""
    tail: str = ""


@dataclass(frozen=True)
class PanelRow:
    """Panels side by side, and the label to their left."""

    panels: Sequence[Panel]
    label: str = ""
    tail: str = ""


def draw_rows(
    rows: Sequence[PanelRow], heading: str, legends: Sequence[Legend], notes: Sequence[str], broken: bool = False
) -> Sheet:
    """Draw rows of panels on a sheet that fits them.

    Args:
        rows: Top to bottom; titles take space only in rows that have some.
        heading: Upper left, bold; may be empty.
        legends: One colour bar each, below the rows.
        notes: Sentences at the bottom; empty ones are left out.
        broken: Break titles that are wider than their panel into lines, instead of shortening them.
    """
    columns = max(len(row.panels) for row in rows)
    cell = _cell_width(columns)
    start = MARGIN + (_LABEL_WIDTH + _GAP if any(row.label for row in rows) else 0)
    # A narrow, tall picture is drawn smaller than its cell rather than stretching the whole row.
    heights = [
        cell * max(min(float(panel.pixels.shape[0] / panel.pixels.shape[1]), _TALLEST) for panel in row.panels)
        for row in rows
    ]
    titles = [[_title_lines(panel, cell, broken) for panel in row.panels] for row in rows]
    lines = [max(map(len, row)) for row in titles]
    offsets = [_TITLE + _TITLE_LINE * (count - 1) if count else 0.0 for count in lines]
    boxes = font_note([heading, *(row.label for row in rows), *(p.title for row in rows for p in row.panels)])
    width = max(start + columns * (cell + _GAP) - _GAP + MARGIN, 3.8)
    body = sum(heights) + sum(offsets) + _GAP * (len(rows) - 1)
    sheet, y = lay_out(width, body, heading, [*notes, boxes], legends)
    for row, row_titles, height, offset in zip(rows, titles, heights, offsets, strict=True):
        y += offset
        _draw_label(sheet, row, y + height / 2)
        for column, (panel, title) in enumerate(zip(row.panels, row_titles, strict=True)):
            _draw_panel(sheet, panel, title, start + column * (cell + _GAP), y, (cell, height))
        y += height + _GAP
    return sheet


def _cell_width(columns: int) -> float:
    """Width of a panel: as on a page for a few, smaller for many, but never too small for a map and its title."""
    if columns == 1:
        return 3.4
    return min(2.6, 9.0 / columns) if columns <= 5 else max(_NARROWEST, min(1.7, 15.3 / columns))


def _title_lines(panel: Panel, cell: float, broken: bool) -> list[tuple[str, str]]:
    """Lines above a picture, each a bold part and a plain one."""
    if not panel.title and not panel.tail:
        return []
    tail = f"  {panel.tail}" if panel.tail and panel.title else panel.tail
    room = cell - text_width(tail, 9)
    if not broken or text_width(panel.title, 9, bold=True) <= room:
        return [(shorten(panel.title, room, 9, bold=True), tail)]
    # Names of methods may break after a hyphen; a remark that does not fit beside the last line gets its own.
    lines = [(line, "") for line in wrap(panel.title, cell, 9, most=3, bold=True, hyphens=True)]
    if text_width(lines[-1][0], 9, bold=True) <= room:
        return [*lines[:-1], (lines[-1][0], tail)]
    return [*lines, ("", shorten(panel.tail, cell, 9))]


def _draw_panel(
    sheet: Sheet, panel: Panel, title: Sequence[tuple[str, str]], x: float, y: float, box: tuple[float, float]
) -> None:
    """A picture in a box whose upper left corner is (x, y), and its title above."""
    for row, (name, tail) in enumerate(reversed(title)):
        line = y - 0.08 - _TITLE_LINE * row
        sheet.write(x, line, name, 9, bold=True)
        sheet.write(x + text_width(name, 9, bold=True), line, tail, 9)
    rows, columns = panel.pixels.shape[:2]
    scale = min(box[0] / columns, box[1] / rows)
    sheet.paint(x, y, columns * scale, rows * scale, panel.pixels, "panel")


def _draw_label(sheet: Sheet, row: PanelRow, middle: float) -> None:
    lines = [(line, True) for line in wrap(row.label, _LABEL_WIDTH, 9, most=4, bold=True)]
    lines += [(line, False) for line in wrap(row.tail, _LABEL_WIDTH, 9, most=2)]
    y = middle - _LINE * len(lines) / 2 + 0.14
    for line, bold in lines:
        sheet.write(MARGIN, y, line, 9, bold=bold)
        y += _LINE
