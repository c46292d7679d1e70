"""Letters of pictures: the fonts that draw them, how wide a line is, and where it breaks."""

import re
from bisect import bisect_right
from collections.abc import Iterable
from functools import lru_cache
from itertools import groupby

from matplotlib.font_manager import FontProperties, findfont, fontManager, get_font
from PIL import ImageFont

from mhex._printable import printable

# DejaVu Sans comes with matplotlib; the others are taken, if installed, for the scripts it lacks.
_FALLBACKS = ("Noto Sans CJK SC", "Noto Sans CJK JP", "WenQuanYi Zen Hei", "Noto Sans Devanagari", "Arial Unicode MS")
_MEASURE = 200  # pixels of the letters that are measured: so large that hinting changes nothing


@lru_cache(maxsize=1)
def _families() -> list[str]:
    installed = set(fontManager.get_font_names())
    return ["DejaVu Sans", *(name for name in _FALLBACKS if name in installed)]


@lru_cache(maxsize=64)
def font(size: float, bold: bool = False) -> FontProperties:
    """The one font of all pictures, for matplotlib; independent of the user's matplotlib settings."""
    # The last family is for readers of SVG files on machines without DejaVu Sans.
    families = [*_families(), "sans-serif"]
    return FontProperties(family=families, size=size, weight="bold" if bold else "normal", style="normal")


@lru_cache(maxsize=2)
def _files(bold: bool) -> dict[str, frozenset[int]]:
    """Font files, the first one before the others, and the code points that each can draw."""
    # Letters that no bold font has are drawn by a plain one.
    weights = ("bold", "normal") if bold else ("normal",)
    files = [
        findfont(FontProperties(family=name, weight=weight, style="normal"))
        for weight in weights
        for name in _families()
    ]
    return {file: frozenset(get_font(file).get_charmap()) for file in files}


@lru_cache(maxsize=64)
def _typeface(file: str, size: float) -> ImageFont.FreeTypeFont:
    # Files that hold several fonts are known to newer matplotlib only.
    return ImageFont.truetype(str(file), size, index=getattr(file, "face_index", 0))


def pieces(text: str, size: float, bold: bool) -> list[tuple[str, ImageFont.FreeTypeFont]]:
    """The parts of a line and the font that draws each, with letters of `size` pixels."""
    text, files = drawable(text), _files(bold)
    first = next(iter(files))
    if text.isascii():
        return [(text, _typeface(first, size))]
    runs = groupby(text, lambda letter: next((file for file in files if ord(letter) in files[file]), first))
    return [("".join(letters), _typeface(file, size)) for file, letters in runs]


def drawable(text: str) -> str:
    """The text with a box for each letter that no font has; matplotlib would warn once per letter."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        letter if any(ord(letter) in file for file in _files(False).values()) else "□" for letter in printable(text)
    )


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
    width = sum(face.getlength(part) for part, face in pieces(text, _MEASURE, bold)) * size / _MEASURE
    # Letters drawn on a pixel grid come out a few percent wider than their outlines.
    return 1.03 * width / 72


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
