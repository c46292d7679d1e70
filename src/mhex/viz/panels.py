"""Rows of pictures with titles, row labels and legends: the layout that overlays and comparisons share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mhex.viz.colour import MUTED, Pixels
from mhex.viz.sheet import MARGIN, Legend, Sheet, font_note, shorten, text_width, wrap

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
class Row:
    """Panels side by side, and what stands to their left."""

    panels: Sequence[Panel]
    label: str = ""
    tail: str = ""


def draw_rows(
    rows: Sequence[Row], heading: str, legends: Sequence[Legend], notes: Sequence[str], broken: bool = False
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
    cell = _cell(columns)
    left = MARGIN + (_LABEL_WIDTH + _GAP if any(row.label for row in rows) else 0)
    width = max(left + columns * (cell + _GAP) - _GAP + MARGIN, 3.8)
    room = width - 2 * MARGIN
    heights = [_row_height(row, cell) for row in rows]
    written = [[_title_lines(panel, cell, broken) for panel in row.panels] for row in rows]
    titles = [_title_height(max(map(len, lines))) for lines in written]
    boxes = font_note([heading, *(row.label for row in rows), *(p.title for row in rows for p in row.panels)])
    sentences = [line for note in (*notes, boxes) if note for line in wrap(note, room, 7.5, most=8)]
    top = MARGIN + (0.26 if heading else 0.0)
    body = sum(heights) + sum(titles) + _GAP * (len(rows) - 1)
    below = 0.1 + 0.24 * len(legends) + _LINE * len(sentences)
    sheet = Sheet(width, top + body + below + MARGIN)
    if heading:
        sheet.write(MARGIN, MARGIN + 0.14, shorten(heading, room, 12, bold=True), 12, bold=True)
    y = top
    for row, lines, height, title in zip(rows, written, heights, titles, strict=True):
        y += title
        _draw_label(sheet, row, y + height / 2)
        for column, (panel, said) in enumerate(zip(row.panels, lines, strict=True)):
            _draw_panel(sheet, panel, said, left + column * (cell + _GAP), y, (cell, height))
        y += height + _GAP
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


def _cell(columns: int) -> float:
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


def _title_height(lines: int) -> float:
    return _TITLE + _TITLE_LINE * (lines - 1) if lines else 0.0


def _draw_panel(
    sheet: Sheet, panel: Panel, lines: Sequence[tuple[str, str]], x: float, y: float, box: tuple[float, float]
) -> None:
    """A picture in a box whose upper left corner is (x, y), and its title above."""
    for number, (name, tail) in enumerate(reversed(lines)):
        line = y - 0.08 - _TITLE_LINE * number
        sheet.write(x, line, name, 9, bold=True)
        sheet.write(x + text_width(name, 9, bold=True), line, tail, 9)
    rows, columns = panel.pixels.shape[:2]
    scale = min(box[0] / columns, box[1] / rows)
    sheet.paint(x, y, columns * scale, rows * scale, panel.pixels, "panel")


def _draw_label(sheet: Sheet, row: Row, middle: float) -> None:
    lines = [(line, True) for line in wrap(row.label, _LABEL_WIDTH, 9, most=4, bold=True)]
    lines += [(line, False) for line in wrap(row.tail, _LABEL_WIDTH, 9, most=2)]
    y = middle - _LINE * len(lines) / 2 + 0.14
    for line, bold in lines:
        sheet.write(MARGIN, y, line, 9, bold=bold)
        y += _LINE
