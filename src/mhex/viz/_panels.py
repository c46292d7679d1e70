"""Rows of pictures with titles, row labels and legends: the layout that overlays and comparisons share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mhex.viz._colour import MUTED, Pixels
from mhex.viz._labels import Legend
from mhex.viz._sheet import MARGIN, Sheet, font_note, shorten, text_width, wrap

_GAP = 0.12
_TITLE = 0.24
_LABEL_WIDTH = 1.15
_TALLEST = 1.25
_LINE = 0.2


@dataclass(frozen=True)
class Panel:
    """A picture (h, w, 3) and the line above it: a title, shortened to fit, and a tail that is always shown."""

    pixels: Pixels
    title: str = ""
    tail: str = ""


@dataclass(frozen=True)
class Row:
    """Panels side by side, and what stands to their left."""

    panels: Sequence[Panel]
    label: str = ""
    tail: str = ""


def draw_rows(rows: Sequence[Row], heading: str, legends: Sequence[Legend], notes: Sequence[str]) -> Sheet:
    """Draw rows of panels on a sheet that fits them.

    Args:
        rows: Top to bottom; titles take space only in rows that have some.
        heading: Upper left, bold; may be empty.
        legends: One colour bar each, below the rows.
        notes: Sentences at the bottom; empty ones are left out.
    """
    columns = max(len(row.panels) for row in rows)
    cell = 3.4 if columns == 1 else min(2.6, max(1.7, 9.0 / columns))
    left = MARGIN + (_LABEL_WIDTH + _GAP if any(row.label for row in rows) else 0)
    width = max(left + columns * (cell + _GAP) - _GAP + MARGIN, 3.8)
    room = width - 2 * MARGIN
    heights = [_row_height(row, cell) for row in rows]
    titles = [_TITLE if any(p.title or p.tail for p in row.panels) else 0.0 for row in rows]
    boxes = font_note([heading, *(row.label for row in rows), *(p.title for row in rows for p in row.panels)])
    sentences = [line for note in (*notes, boxes) if note for line in wrap(note, room, 7.5, most=4)]
    top = MARGIN + (0.26 if heading else 0.0)
    body = sum(heights) + sum(titles) + _GAP * (len(rows) - 1)
    below = 0.1 + 0.24 * len(legends) + _LINE * len(sentences)
    sheet = Sheet(width, top + body + below + MARGIN)
    if heading:
        sheet.write(MARGIN, MARGIN + 0.14, shorten(heading, room, 12, bold=True), 12, bold=True)
    y = top
    for row, height, title in zip(rows, heights, titles, strict=True):
        _draw_label(sheet, row, y + title + height / 2)
        for column, panel in enumerate(row.panels):
            _draw_panel(sheet, panel, left + column * (cell + _GAP), y, cell, title, height)
        y += title + height + _GAP
    y += 0.1
    for bar in legends:
        y += 0.12
        sheet.bar(MARGIN, y, bar, text=False, room=room)
        y += 0.12
    for sentence in sentences:
        y += _LINE / 2
        sheet.write(MARGIN, y + 0.04, sentence, 7.5, MUTED)
        y += _LINE / 2
    return sheet


def _row_height(row: Row, cell: float) -> float:
    # A narrow, tall picture is drawn smaller than its cell rather than stretching the whole row.
    return cell * max(min(float(p.pixels.shape[0] / p.pixels.shape[1]), _TALLEST) for p in row.panels)


def _draw_panel(sheet: Sheet, panel: Panel, x: float, y: float, cell: float, title: float, height: float) -> None:
    tail = f"  {panel.tail}" if panel.tail and panel.title else panel.tail
    tail_width = text_width(tail, 9)
    name = shorten(panel.title, cell - tail_width, 9, bold=True)
    if name or tail:
        sheet.write(x, y + title - 0.08, name, 9, bold=True)
        sheet.write(x + text_width(name, 9, bold=True), y + title - 0.08, tail, 9)
    rows, columns = panel.pixels.shape[:2]
    scale = min(cell / columns, height / rows)
    sheet.paint(x, y + title, columns * scale, rows * scale, panel.pixels, "panel")


def _draw_label(sheet: Sheet, row: Row, middle: float) -> None:
    lines = wrap(row.label, _LABEL_WIDTH, 9, most=4, bold=True) if row.label else []
    y = middle - _LINE * (len(lines) + bool(row.tail)) / 2 + 0.14
    for line in lines:
        sheet.write(MARGIN, y, line, 9, bold=True)
        y += _LINE
    sheet.write(MARGIN, y, row.tail, 9)
