"""A canvas of pixels, drawn by Pillow: what has no axes costs a fraction of a matplotlib figure."""

import io
from collections.abc import Callable
from typing import Any

import matplotlib
from PIL import Image, ImageDraw

from mhex._settings import check_that
from mhex.viz.colour import INK, Pixels
from mhex.viz.letters import pieces

Paper = Any  # a `Canvas`, or a figure of matplotlib; a `Sheet` is one that has the methods of a canvas
PaperMaker = Callable[[float, float], Paper]  # of a width and a height, in inches
_ROUNDING = 0.035  # radius of the corners of a box, in inches
_FINER = 4  # a box is drawn so much larger, and made smaller, for smooth corners
# Most of the time goes into PNG: more compression takes three times as long for a fifth less.
PIXELS: dict[str, dict[str, Any]] = {"png": {"compress_level": 1}, "jpeg": {"quality": 90}, "webp": {"quality": 90}}


class Canvas:
    """White paper with `dpi` pixels in an inch; places are in inches from the top left corner."""

    def __init__(self, width: float, height: float, dpi: int = 200) -> None:
        self.dpi = dpi
        size = (int(width * dpi + 1e-6), int(height * dpi + 1e-6))  # whole pixels, as matplotlib counts them
        self.image = Image.new("RGB", size, "white")
        self._pen = ImageDraw.Draw(self.image)

    def write(
        self, x: float, y: float, text: str, size: float = 9, ink: str = INK, bold: bool = False, centred: bool = False
    ) -> None:
        """Write one line with its base line at `y` inches below the top, from `x` on or centred at `x`."""
        parts = pieces(text, size * self.dpi / 72, bold)
        left = x * self.dpi - (sum(face.getlength(part) for part, face in parts) / 2 if centred else 0)
        for part, face in parts:
            self._pen.text((left, y * self.dpi), part, ink, face, anchor="ls")
            left += face.getlength(part)

    def paint(self, x: float, y: float, width: float, height: float, pixels: Pixels, label: str) -> None:
        """Draw an image (h, w, 3) stretched over a rectangle whose upper left corner is (x, y)."""
        left, top, right, bottom = self._corners(x, y, width, height)
        size = (max(1, right - left), max(1, bottom - top))
        self.image.paste(Image.fromarray(pixels).resize(size, Image.Resampling.HAMMING), (left, top))

    def box(self, x: float, y: float, width: float, height: float, colour: str) -> None:
        """Draw a filled box with round corners whose upper left corner is (x, y)."""
        left, top, right, bottom = self._corners(x, y, width, height)
        mask = Image.new("L", (_FINER * (right - left), _FINER * (bottom - top)))
        corners = (0, 0, mask.width - 1, mask.height - 1)
        ImageDraw.Draw(mask).rounded_rectangle(corners, _FINER * _ROUNDING * self.dpi, 255)
        self.image.paste(colour, (left, top), mask.reduce(_FINER))

    def _corners(self, x: float, y: float, width: float, height: float) -> tuple[int, ...]:
        return tuple(round(self.dpi * place) for place in (x, y, x + width, y + height))


def render(drawing: Paper, kind: str, dpi: int = 200, in_page: bool = False) -> bytes:
    """The bytes of a `"png"`, `"jpeg"`, `"webp"`, `"pdf"` or `"svg"` file, the same for the same drawing.

    The pixels of a canvas are there already, so it has its own number of them in an inch, and is no file of shapes. An
    SVG that is a part of a page has no paper and no letters of its own.
    """
    buffer = io.BytesIO()
    if isinstance(drawing, Canvas):
        check_that(kind in PIXELS, f"a picture of pixels ({', '.join(PIXELS)}) of a canvas", kind)
        drawing.image.save(buffer, kind, dpi=(drawing.dpi, drawing.dpi), **PIXELS[kind])
        return buffer.getvalue()
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
    paper = "none" if in_page else drawing.get_facecolor()
    with matplotlib.rc_context({"svg.hashsalt": "mhex", "svg.fonttype": "none" if in_page else "path"}):
        drawing.savefig(buffer, format=kind, dpi=dpi, facecolor=paper, bbox_inches=None, metadata=undated)
    return buffer.getvalue()
