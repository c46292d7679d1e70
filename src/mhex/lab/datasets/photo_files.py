"""Photos and masks in files, decoded when they are taken, as squares of one size."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, Literal, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from mhex.errors import ArgumentError, MhexError
from mhex.inputs.photos import UnknownWindowError, Window, check_window, plain_rgb, upright_rgb
from mhex.lab.datasets.files import Array, decoding_pool, opened_image

Fit = Literal["crop", "squash"]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]
PHOTO_SUFFIXES = (".jpeg", ".jpg", ".png", ".bmp", ".webp", ".tif", ".tiff")


class PhotoRows(Protocol):
    """An object whose rows are taken like those of a tensor."""

    def __len__(self) -> int:
        """Number of rows."""

    def __getitem__(self, rows: Tensor) -> Tensor:
        """The rows with some numbers (B,), stacked."""


def class_photos(root: Path, classes: Sequence[str]) -> list[tuple[Path, int]]:
    """The photos in ``root/CLASS/`` with the places of their classes, in the order of classes and names.

    torchvision's ImageFolder also enters folders inside the folder of a class, such as those of thumbnails.
    """
    return [
        (path, place)
        for place, name in enumerate(classes)
        for path in sorted((root / name).glob("*"))
        if path.suffix.lower() in PHOTO_SUFFIXES
    ]


def fitted(photo: Image.Image, side: int, fit: Fit, *, nearest: bool = False) -> Image.Image:
    """A photo or mask as a square: cut out of the middle, or both sides scaled; ``nearest`` is for masks."""
    resample = Image.Resampling.NEAREST if nearest else Image.Resampling.BICUBIC
    if fit == "squash":
        return photo.resize((side, side), resample)
    scale = side / min(photo.size)
    width, height = (max(side, round(length * scale)) for length in photo.size)
    x, y = (width - side) // 2, (height - side) // 2
    return photo.resize((width, height), resample).crop((x, y, x + side, y + side))


class _Files(ABC):
    """Files that become squares, several at a time."""

    def __init__(self, paths: Sequence[Path], side: int, fit: Fit) -> None:
        if fit not in ("crop", "squash"):
            raise ArgumentError(f"fit should be 'crop' or 'squash', not {fit!r}.")
        if side < 1:
            raise ArgumentError(f"side should be a positive number of pixels, not {side}.")
        self.paths, self.side = tuple(paths), side
        self.fit: Fit = fit
        self._pool = decoding_pool()

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the files without their suffixes."""
        return tuple(path.stem for path in self.paths)

    def __getitem__(self, rows: Tensor) -> Tensor:
        return torch.from_numpy(np.stack(list(self._pool.map(self._opened, rows.tolist()))))

    def _opened(self, row: int) -> Array:
        path = self.paths[row]
        with opened_image(path, path.name) as photo:
            return self._square(photo, path)

    @abstractmethod
    def _square(self, photo: Image.Image, path: Path) -> Array:
        """The square of an opened file."""


class PhotoFiles(_Files):
    """Photos in files, taken like rows of a tensor: ``files[rows]`` is (B, 3, side, side), uint8.

    Args:
        paths: The files.
        side: Side of the squares in pixels.
        fit: As for `fitted`.
        upright: Whether to turn photos as their camera says, with transparency over white. Published collections are
            used without.
        window: Values that become black and white, for photos of more than 8 bits that do not say them themselves.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        side: int,
        fit: Fit = "crop",
        *,
        upright: bool = False,
        window: Window | None = None,
    ) -> None:
        super().__init__(paths, side, fit)
        self.upright, self.window = upright, check_window(window)
        self._lock = Lock()
        self._refusal: UnknownWindowError | None = None

    def _square(self, photo: Image.Image, path: Path) -> Bytes:
        photo.draft("RGB", (self.side, self.side))  # JPEG is decoded at a smaller scale where that suffices
        try:
            plain = (upright_rgb if self.upright else plain_rgb)(photo, self.window, path.name)
        except UnknownWindowError as error:
            raise self._unknown_window(error) from error
        return np.asarray(fitted(plain, self.side, self.fit)).transpose(2, 0, 1)

    def _unknown_window(self, error: UnknownWindowError) -> UnknownWindowError:
        """One sentence for all files whose black and white are not known, with the range over all of them."""
        with self._lock:
            if self._refusal is None:
                errors = []
                for path in self.paths:
                    try:
                        with opened_image(path, path.name) as photo:
                            plain_rgb(photo, self.window, path.name)
                    except UnknownWindowError as refusal:
                        errors.append(refusal)
                    except MhexError:
                        continue  # this file is refused for another reason when it is taken
                self._refusal = UnknownWindowError.joined(errors or [error])
        return self._refusal


class MaskFiles(_Files):
    """Masks in files, grey or with a palette whose places count: ``files[rows]`` is (B, side, side).

    ``convert`` makes the mask from the values (side, side), uint8, and the name of the file.
    """

    def __init__(self, paths: Sequence[Path], side: int, fit: Fit, convert: Callable[[Bytes, str], Array]) -> None:
        super().__init__(paths, side, fit)
        self._convert = convert

    def _square(self, photo: Image.Image, path: Path) -> Array:
        plain = photo if photo.mode in ("P", "L") else photo.convert("L")
        return self._convert(np.asarray(fitted(plain, self.side, self.fit, nearest=True), dtype=np.uint8), path.name)


def object_mask(values: Bytes, name: str) -> np.ndarray[Any, np.dtype[np.int8]]:
    """A user's mask: 1 where it is not black, 0 elsewhere."""
    return (values > 0).astype(np.int8)
