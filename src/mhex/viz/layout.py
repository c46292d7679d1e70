"""Where things stand on a picture, in inches: headings, rows of panels, colour bars and notes, on any paper."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mhex.viz.canvas import Paper, PaperMaker
from mhex.viz.captions import Legend
from mhex.viz.colour import MUTED, Pixels, colour_bar
from mhex.viz.letters import font_note, shorten, text_width, wrap

MARGIN = 0.18
BAR = (1.3, 0.13)
# Of rows of pictures, in inches.
_GAP = 0.12
_TITLE, _TITLE_LINE = 0.24, 0.16
_LABEL_WIDTH, _LABEL_LINE = 1.15, 0.2
_TALLEST = 1.25
_NARROWEST = 1.05


def lay_out(
    width: float,
    body: float,
    heading: str,
    notes: Iterable[str],
    legends: Sequence[Legend] = (),
    text: bool = False,
    heading_size: float = 12,
    paper: PaperMaker | None = None,
) -> tuple[Paper, float]:
    """A sheet with a heading above its body, and legends and notes below it; empty ones take no room.

    Args:
        width: Of the sheet, in inches.
        body: Height of what the caller draws.
        heading: Upper left, bold.
        notes: Sentences at the bottom.
        legends: One colour bar each, above the notes.
        text: Whether the colour bars are of words.
        heading_size: Of the letters of the heading, in points.
        paper: What to draw on; None for a figure of matplotlib.

    Returns:
        The sheet, and how far its body is below the top.
    """
    if paper is None:
        from mhex.viz.sheet import Sheet  # loads figures of matplotlib, which pictures of pixels do without

        paper = Sheet
    room = width - 2 * MARGIN
    titles = wrap(heading, room, heading_size, most=2, bold=True)
    lines = [line for note in notes for line in wrap(note, room, 7.5, most=8)]
    top = MARGIN + (0.1 + 0.22 * len(titles) if titles else 0.0)
    sheet = paper(width, top + body + 0.1 + 0.24 * len(legends) + 0.2 * len(lines) + MARGIN)
    for row, title in enumerate(titles):
        sheet.write(MARGIN, MARGIN + 0.14 + 0.22 * row, title, heading_size, bold=True)
    y = top + body + 0.1
    for bar in legends:
        _draw_bar(sheet, MARGIN, y + 0.12, bar, text, room)
        y += 0.24
    for line in lines:
        sheet.write(MARGIN, y + 0.14, line, 7.5, MUTED)
        y += 0.2
    return sheet, top


def _draw_bar(sheet: Paper, x: float, y: float, legend: Legend, text: bool, room: float) -> None:
    """Draw a colour bar, of words or of photos, from `x` on, with words at its ends that are shortened to fit.

    The base line of the words is at `y`, and all together are at most `room` inches wide.
    """
    low_room = (room - BAR[0] - 0.16) / 2
    high_room = max(low_room, room - BAR[0] - 0.16 - min(low_room, text_width(legend.low, 8)))
    low = shorten(legend.low, low_room, 8)
    sheet.write(x, y, low, 8, MUTED)
    x += text_width(low, 8) + 0.08
    sheet.paint(x, y - BAR[1] + 0.03, *BAR, colour_bar(legend.signed, text), "legend")
    sheet.write(x + BAR[0] + 0.08, y, shorten(legend.high, high_room, 8), 8, MUTED)


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
    rows: Sequence[PanelRow],
    heading: str,
    legends: Sequence[Legend],
    notes: Sequence[str],
    broken: bool = False,
    paper: PaperMaker | None = None,
) -> Paper:
    """Draw rows of panels on a sheet that fits them; the other arguments are as for `lay_out`.

    Titles take space only in rows that have some. Those that are wider than their panel are shortened, or `broken`
    into lines.
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
    offsets = [_TITLE + _TITLE_LINE * (max(map(len, row)) - 1) if any(row) else 0.0 for row in titles]
    boxes = font_note([heading, *(row.label for row in rows), *(p.title for row in rows for p in row.panels)])
    width = max(start + columns * (cell + _GAP) - _GAP + MARGIN, 3.8)
    body = sum(heights) + sum(offsets) + _GAP * (len(rows) - 1)
    sheet, y = lay_out(width, body, heading, [*notes, boxes], legends, paper=paper)
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
    sheet: Paper, panel: Panel, title: Sequence[tuple[str, str]], x: float, y: float, box: tuple[float, float]
) -> None:
    """A picture in a box whose upper left corner is (x, y), and its title above."""
    for row, (name, tail) in enumerate(reversed(title)):
        line = y - 0.08 - _TITLE_LINE * row
        sheet.write(x, line, name, 9, bold=True)
        sheet.write(x + text_width(name, 9, bold=True), line, tail, 9)
    rows, columns = panel.pixels.shape[:2]
    scale = min(box[0] / columns, box[1] / rows)
    sheet.paint(x, y, columns * scale, rows * scale, panel.pixels, "panel")


def _draw_label(sheet: Paper, row: PanelRow, middle: float) -> None:
    lines = [(line, True) for line in wrap(row.label, _LABEL_WIDTH, 9, most=4, bold=True)]
    lines += [(line, False) for line in wrap(row.tail, _LABEL_WIDTH, 9, most=2)]
    y = middle - _LABEL_LINE * len(lines) / 2 + 0.14
    for line, bold in lines:
        sheet.write(MARGIN, y, line, 9, bold=bold)
        y += _LABEL_LINE
