"""A photo as people see it."""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image

# What PIL raises while it reads a damaged file, beside its own errors of huge pictures.
BROKEN = (
    *(OSError, SyntaxError, ValueError, EOFError, TypeError, LookupError, OverflowError, RuntimeError),
    *(MemoryError, struct.error, zlib.error),
)


MOST_PIXELS = 178_956_970  # PIL's own limit: half a gigabyte of RGB
_USUAL, _DENSEST = 4_000_000, 20_000  # pixels of any file, and pixels for each byte of a larger one


def claims_too_much(photo: Image, size: int) -> bool:
    """Whether a photo claims more pixels than anybody has, or than its file can hold.

    Args:
        photo: Opened, and not read yet.
        size: Of its file, in bytes.
    """
    pixels = photo.width * photo.height
    return pixels > min(MOST_PIXELS, max(_USUAL, _DENSEST * size))


def upright_rgb(photo: Image) -> Image:
    """The photo turned by its EXIF orientation, in 8-bit RGB, transparency over white."""
    from PIL import Image, ImageOps

    photo = ImageOps.exif_transpose(photo)
    if photo.mode.startswith(("I", "F")):
        return _deep_to_grey(photo).convert("RGB")
    if photo.has_transparency_data:
        clear = photo.convert("RGBA")
        paper = Image.new("RGBA", clear.size, "white")
        return Image.alpha_composite(paper, clear).convert("RGB")
    return photo.convert("RGB")


def _deep_to_grey(photo: Image) -> Image:
    """Grey photos of more than 8 bits: PIL would cut them off at 255 and show white."""
    import numpy as np
    from PIL import Image

    values = np.asarray(photo, dtype=np.float64)
    if not np.isfinite(values).all():
        raise ValueError("it holds values that are not numbers")
    highest = float(values.max())
    if photo.mode.startswith("F"):
        top = 1.0 if highest <= 1 else 255.0 if highest <= 255 else highest
    else:
        top = 65535.0 if photo.mode.startswith("I;16") or highest > 255 else 255.0
    return Image.fromarray(np.rint(np.clip(values / top, 0, 1) * 255).astype(np.uint8))
