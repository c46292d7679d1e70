"""A sheet of paper measured in inches: its fonts, its legends, its rows of pictures, and its bytes in a file."""

import io
import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, fontManager, get_font
from matplotlib.patches import FancyBboxPatch
from matplotlib.textpath import text_to_path

from mhex._printable import printable
from mhex.viz.captions import Legend
from mhex.viz.colour import INK, MUTED, Pixels, colour_bar

MARGIN = 0.18
BAR = (1.3, 0.13)
# Of rows of pictures, in inches.
_GAP = 0.12
_TITLE, _TITLE_LINE = 0.24, 0.16
_LABEL_WIDTH, _LABEL_LINE = 1.15, 0.2
_TALLEST = 1.25
_NARROWEST = 1.05
# DejaVu Sans comes with matplotlib; the others are taken, if installed, for the scripts it lacks.
_FALLBACKS = ("Noto Sans CJK SC", "Noto Sans CJK JP", "WenQuanYi Zen Hei", "Noto Sans Devanagari", "Arial Unicode MS")


class Sheet(Figure):
    """A matplotlib figure drawn in inches from the top left corner, which notebooks show without pyplot."""

    def __init__(self, width: float, height: float) -> None:
        super().__init__(figsize=(width, height), dpi=100, facecolor="white")
        # The user's settings may ask for a layout engine, which would move what is placed by hand.
        self.set_layout_engine("none")
        FigureCanvasAgg(self)

    def _repr_png_(self) -> bytes:
        return render(self, "png", dpi=110)

    def write(
        self, x: float, y: float, text: str, size: float = 9, ink: str = INK, bold: bool = False, centred: bool = False
    ) -> None:
        """Write one line with its base line at `y` inches below the top, from `x` on or centred at `x`."""
        self.text(
            x,
            self.get_figheight() - y,
            drawable(text),
            color=ink,
            fontproperties=font(size, bold),
            horizontalalignment="center" if centred else "left",
            transform=self.dpi_scale_trans,
            parse_math=False,  # a dollar sign in a class name or a token is a dollar sign
            usetex=False,
        )

    def axes_at(self, x: float, y: float, width: float, height: float, label: str) -> Any:
        """Matplotlib axes over a rectangle in inches whose upper left corner is (x, y)."""
        paper_width, paper_height = self.get_size_inches()
        box = (x / paper_width, 1 - (y + height) / paper_height, width / paper_width, height / paper_height)
        return self.add_axes(box, label=label)

    def paint(self, x: float, y: float, width: float, height: float, pixels: Pixels, label: str) -> None:
        """Draw an image (h, w, 3) stretched over a rectangle whose upper left corner is (x, y)."""
        axes = self.axes_at(x, y, width, height, label)
        axes.set_axis_off()
        axes.imshow(pixels, aspect="auto", interpolation="antialiased")

    def box(self, x: float, y: float, width: float, height: float, colour: str) -> None:
        """Draw a filled box with round corners whose upper left corner is (x, y)."""
        self.add_artist(
            FancyBboxPatch(
                (x, self.get_figheight() - y - height),
                width,
                height,
                boxstyle="round,pad=0,rounding_size=0.035",
                facecolor=colour,
                edgecolor="none",
                transform=self.dpi_scale_trans,
            )
        )

    def bar(self, x: float, y: float, legend: Legend, text: bool, room: float) -> None:
        """Draw a colour bar, of words or of photos, from `x` on, with words at its ends that are shortened to fit.

        The base line of the words is at `y`, and all together are at most `room` inches wide.
        """
        low_room = (room - BAR[0] - 0.16) / 2
        high_room = max(low_room, room - BAR[0] - 0.16 - min(low_room, text_width(legend.low, 8)))
        low = shorten(legend.low, low_room, 8)
        self.write(x, y, low, 8, MUTED)
        x += text_width(low, 8) + 0.08
        self.paint(x, y - BAR[1] + 0.03, *BAR, colour_bar(legend.signed, text), "legend")
        self.write(x + BAR[0] + 0.08, y, shorten(legend.high, high_room, 8), 8, MUTED)


def lay_out(
    width: float,
    body: float,
    heading: str,
    notes: Iterable[str],
    legends: Sequence[Legend] = (),
    text: bool = False,
    heading_size: float = 12,
) -> tuple[Sheet, float]:
    """A sheet with a heading above its body, and legends and notes below it; empty ones take no room.

    Args:
        width: Of the sheet, in inches.
        body: Height of what the caller draws.
        heading: Upper left, bold.
        notes: Sentences at the bottom.
        legends: One colour bar each, above the notes.
        text: Whether the colour bars are of words.
        heading_size: Of the letters of the heading, in points.

    Returns:
        The sheet, and how far its body is below the top.
    """
    room = width - 2 * MARGIN
    titles = wrap(heading, room, heading_size, most=2, bold=True)
    lines = [line for note in notes for line in wrap(note, room, 7.5, most=8)]
    top = MARGIN + (0.1 + 0.22 * len(titles) if titles else 0.0)
    sheet = Sheet(width, top + body + 0.1 + 0.24 * len(legends) + 0.2 * len(lines) + MARGIN)
    for row, title in enumerate(titles):
        sheet.write(MARGIN, MARGIN + 0.14 + 0.22 * row, title, heading_size, bold=True)
    y = top + body + 0.1
    for bar in legends:
        sheet.bar(MARGIN, y + 0.12, bar, text, room)
        y += 0.24
    for line in lines:
        sheet.write(MARGIN, y + 0.14, line, 7.5, MUTED)
        y += 0.2
    return sheet, top


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
    y = middle - _LABEL_LINE * len(lines) / 2 + 0.14
    for line, bold in lines:
        sheet.write(MARGIN, y, line, 9, bold=bold)
        y += _LABEL_LINE


@lru_cache(maxsize=64)
def font(size: float, bold: bool = False) -> FontProperties:
    """The one font of all pictures; independent of the user's matplotlib settings."""
    # The last family is for readers of SVG files on machines without DejaVu Sans.
    families = [*_families(), "sans-serif"]
    return FontProperties(family=families, size=size, weight="bold" if bold else "normal", style="normal")


@lru_cache(maxsize=1)
def _families() -> list[str]:
    installed = set(fontManager.get_font_names())
    return ["DejaVu Sans", *(name for name in _FALLBACKS if name in installed)]


@lru_cache(maxsize=1)
def _letters() -> frozenset[int]:
    """Code points that the installed fonts can draw."""
    return frozenset().union(*(get_font(findfont(FontProperties(family=name))).get_charmap() for name in _families()))


def drawable(text: str) -> str:
    """The text with a box for each letter that no font has; matplotlib would warn once per letter."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(letter if ord(letter) in _letters() else "□" for letter in printable(text))


def font_note(texts: Iterable[str]) -> str:
    """A sentence if some letters cannot be drawn."""
    if all(drawable(text) == printable(text) for text in texts):
        return ""
    return "Boxes (□) stand for letters that the installed fonts lack; install a Noto font, or save as HTML."


@lru_cache(maxsize=8192)
def text_width(text: str, size: float, bold: bool = False) -> float:
    """Width of a line in inches."""
    if not text:
        return 0.0
    width, _, _ = text_to_path.get_text_width_height_descent(drawable(text), font(size, bold), ismath=False)
    # Letters drawn on a pixel grid come out a few percent wider than their outlines.
    return 1.03 * float(width) / 72


def shorten(text: str, room: float, size: float, bold: bool = False) -> str:
    """The text, or as much of its beginning as fits `room` inches, with an ellipsis."""
    if text_width(text, size, bold) <= room:
        return text
    cuts = range(1, len(text))
    fitting = bisect_right(cuts, room, key=lambda end: text_width(_cut(text, end), size, bold))
    return _cut(text, fitting)


def _cut(text: str, end: int) -> str:
    return text[:end].rstrip(" ,;") + "…"


def wrap(text: str, room: float, size: float, most: int, bold: bool = False, hyphens: bool = False) -> list[str]:
    """Break a text at spaces, or also after hyphens, into at most `most` lines of `room` inches.

    Runs of spaces count as one. The last line is shortened to fit.
    """
    lines: list[str] = []
    # Each piece brings the space that follows it.
    pieces = re.findall(r"[^\s-]*-+|[^\s-]+ ?| " if hyphens else r"\S+ ?", " ".join(text.split()))
    while pieces and len(lines) < most - 1:
        count = 1
        while count < len(pieces) and text_width("".join(pieces[: count + 1]).rstrip(), size, bold) <= room:
            count += 1
        lines.append(shorten("".join(pieces[:count]).rstrip(), room, size, bold))
        pieces = pieces[count:]
    return [*lines, shorten("".join(pieces).rstrip(), room, size, bold)] if pieces else lines


def render(figure: Figure, kind: str, dpi: int = 200, in_page: bool = False) -> bytes:
    """A figure as the bytes of a `"png"`, `"jpg"`, `"pdf"`, `"svg"` or `"webp"` file, the same for the same figure.

    An SVG that is a part of a page has no paper and no letters of its own.
    """
    buffer = io.BytesIO()
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
    paper = "none" if in_page else figure.get_facecolor()
    with matplotlib.rc_context({"svg.hashsalt": "mhex", "svg.fonttype": "none" if in_page else "path"}):
        figure.savefig(buffer, format=kind, dpi=dpi, facecolor=paper, bbox_inches=None, metadata=undated)
    return buffer.getvalue()
