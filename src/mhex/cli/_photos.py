"""Opening photos of unknown origin: every way a file can be wrong gets one sentence."""

from __future__ import annotations

import warnings
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from mhex.errors import ArgumentError, MhexError

if TYPE_CHECKING:
    from PIL.Image import Image

    from mhex.inputs.photos import Window

# A closed list: PIL would also hand EPS files, which are programs, to an interpreter.
FORMATS = ("PNG", "JPEG", "MPO", "WEBP", "BMP", "GIF", "TIFF", "PPM", "JPEG2000", "AVIF")
_NAMES = "PNG, JPEG, WebP, BMP, GIF, TIFF, PPM, JPEG 2000, AVIF"


def open_photo(path: str | PathLike[str], window: Window | None = None) -> Image:
    """Open a photo as people see it: turned by its EXIF orientation, in RGB, transparency over white."""
    from PIL import Image, UnidentifiedImageError

    from mhex.inputs.photos import BROKEN, MOST_PIXELS, claims_too_much, upright_rgb

    path = Path(path)
    check_file(path)
    too_large = ArgumentError(
        f"The photo {path} claims more than {MOST_PIXELS // 10**6} million pixels, or more than its bytes hold, and "
        "was not opened, because small files that unpack to huge pictures are a known attack; shrink it first."
    )
    Image.init()
    with warnings.catch_warnings():
        # PIL warns of large photos and of odd tags; the limit below decides, and the tags do not matter here.
        warnings.simplefilter("ignore")
        try:
            # Older versions of PIL cannot open AVIF.
            with Image.open(path, formats=[name for name in FORMATS if name in Image.OPEN]) as photo:
                if claims_too_much(photo, path.stat().st_size):
                    raise too_large
                return upright_rgb(photo, window, f"The photo {path}")
        except MhexError:
            raise
        except Image.DecompressionBombError as error:
            raise too_large from error
        except UnidentifiedImageError as error:
            raise ArgumentError(
                f"Expected a photo ({_NAMES}), but {path} is not a picture of these formats."
            ) from error
        except BROKEN as error:
            reason = str(error).rstrip(".") or type(error).__name__
            raise ArgumentError(f"The photo {path} is damaged or cut off ({reason}).") from error


def check_file(path: Path) -> None:
    """Refuse a file that cannot be a photo without decoding it: missing, a folder, unreadable, empty."""
    try:
        if path.is_dir():
            raise ArgumentError(f"Expected a photo, but {path} is a folder; name the photos in it, e.g. {path}/*.jpg.")
        if not path.exists():
            raise ArgumentError(f"There is no photo {path}; check the path.")
        if not path.is_file():
            raise ArgumentError(f"Expected a photo, but {path} is not a regular file.")
        with path.open("rb") as file:
            start = file.read(1)
    except OSError as error:
        raise ArgumentError(f"The photo {path} cannot be read: {error.strerror or error}.") from error
    if not start:
        raise ArgumentError(f"The photo {path} is empty (0 bytes).")
