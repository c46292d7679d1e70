"""Small photos as files: noise in each format and mode."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image


def photo(mode: str = "RGB", side: int = 12) -> Image.Image:
    noise = np.random.default_rng(1).integers(0, 256, (side, side, 3), dtype=np.uint8)
    if mode == "I;16":  # all of its bits in use, so that its range is known
        return Image.fromarray(noise[..., 0].astype(np.uint16) * 257)
    return Image.fromarray(noise).convert(mode)


def encoded(kind: str, mode: str = "RGB", **options: Any) -> bytes:
    buffer = io.BytesIO()
    photo(mode).save(buffer, kind, **options)
    return buffer.getvalue()


def grey(value: int, side: int = 12) -> bytes:
    """A PNG of one shade."""
    buffer = io.BytesIO()
    Image.new("L", (side, side), value).save(buffer, "PNG")
    return buffer.getvalue()


def turned() -> Image.Exif:
    """What a camera says that was held upright."""
    exif = Image.Exif()
    exif[274] = 6
    return exif
