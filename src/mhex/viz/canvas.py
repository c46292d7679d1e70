"""A canvas of pixels, drawn by Pillow: what has no axes costs a fraction of a matplotlib figure."""

import io
from typing import Any

from PIL import Image, ImageDraw

from mhex.viz.colour import INK, Pixels
from mhex.viz.layout import Paper
from mhex.viz.letters import pieces

_ROUNDING = 0.035  # radius of the corners of a box, in inches
_FINER = 4  # a box is drawn so much larger, and made smaller, for smooth corners
# Most of the time goes into PNG: more compression takes three times as long for a fifth less.
KINDS: dict[str, dict[str, Any]] = {"png": {"compress_level": 1}, "jpeg": {"quality": 90}, "webp": {"quality": 90}}


class Canvas(Paper):
    """White paper of `dpi` pixels an inch."""

    def __init__(self, width: float, height: float, dpi: int = 200) -> None:
        self.width, self.dpi = width, dpi
        self.image = Image.new("RGB", (int(width * dpi), int(height * dpi)), "white")
        self._pen = ImageDraw.Draw(self.image)

    def write(
        self, x: float, y: float, text: str, size: float = 9, ink: str = INK, bold: bool = False, centred: bool = False
    ) -> None:
        parts = pieces(text, size * self.dpi / 72, bold)
        left = x * self.dpi - (sum(face.getlength(part) for part, face in parts) / 2 if centred else 0)
        for part, face in parts:
            self._pen.text((left, y * self.dpi), part, ink, face, anchor="ls")
            left += face.getlength(part)

    def paint(self, x: float, y: float, width: float, height: float, pixels: Pixels, label: str) -> None:
        left, top, right, bottom = self._corners(x, y, width, height)
        size = (max(1, right - left), max(1, bottom - top))
        self.image.paste(Image.fromarray(pixels).resize(size, Image.Resampling.HAMMING), (left, top))

    def box(self, x: float, y: float, width: float, height: float, colour: str) -> None:
        left, top, right, bottom = self._corners(x, y, width, height)
        size = (right - left, bottom - top)
        large = (_FINER * size[0], _FINER * size[1])
        mask = Image.new("L", large)
        corners = (0, 0, large[0] - 1, large[1] - 1)
        ImageDraw.Draw(mask).rounded_rectangle(corners, _FINER * _ROUNDING * self.dpi, 255)
        self.image.paste(colour, (left, top), mask.resize(size, Image.Resampling.BOX))

    def _corners(self, x: float, y: float, width: float, height: float) -> tuple[int, ...]:
        return tuple(round(self.dpi * place) for place in (x, y, x + width, y + height))

    def to_bytes(self, kind: str) -> bytes:
        """The bytes of a file of one of the `KINDS`, the same for the same drawing."""
        file = io.BytesIO()
        self.image.save(file, kind, dpi=(self.dpi, self.dpi), **KINDS[kind])
        return file.getvalue()
