"""Sets of photos in files: with a class each, with two classes each, and with a class for every pixel."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, overload

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from mhex.errors import ArgumentError, MhexError, unknown_name
from mhex.inputs.photos import BROKEN, Window, check_window, claims_too_much, plain_rgb, upright_rgb
from mhex.lab.datasets.tables import DataFormatError

Fit = Literal["crop", "squash"]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]
PHOTO_SUFFIXES = (".jpeg", ".jpg", ".png", ".bmp", ".webp", ".tif", ".tiff")


class PhotoRows(Protocol):
    """What can be taken like the rows of a tensor."""

    def __len__(self) -> int:
        """Number of rows."""

    def __getitem__(self, rows: Tensor) -> Tensor:
        """The rows with some numbers (B,), stacked."""


def fitted(photo: Image.Image, side: int, fit: Fit, *, nearest: bool = False) -> Image.Image:
    """A photo or mask as a square.

    Args:
        photo: Of any size.
        side: Side of the square in pixels.
        fit: ``"crop"`` scales the shorter side and cuts out the middle; ``"squash"`` scales both sides.
        nearest: For masks: no value is made up between two others.
    """
    resample = Image.Resampling.NEAREST if nearest else Image.Resampling.BICUBIC
    if fit == "squash":
        return photo.resize((side, side), resample)
    scale = side / min(photo.size)
    width, height = (max(side, round(length * scale)) for length in photo.size)
    left, top = (width - side) // 2, (height - side) // 2
    return photo.resize((width, height), resample).crop((left, top, left + side, top + side))


class _Files(ABC):
    """Files that become squares, several at a time."""

    def __init__(self, paths: Sequence[Path], side: int, fit: Fit) -> None:
        if fit not in ("crop", "squash"):
            raise ArgumentError(f"fit should be 'crop' or 'squash', not {fit!r}.")
        if side < 1:
            raise ArgumentError(f"side should be a positive number of pixels, not {side}.")
        self.paths = tuple(paths)
        self.side = side
        self.fit: Fit = fit
        # PIL lets go of the interpreter lock while it decodes, so threads are enough.
        self._pool = ThreadPoolExecutor(max_workers=min(16, os.cpu_count() or 1))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, rows: Tensor) -> Tensor:
        return torch.from_numpy(np.stack(list(self._pool.map(self._opened, rows.tolist()))))

    def _opened(self, row: int) -> np.ndarray[Any, Any]:
        path = self.paths[row]
        try:
            with Image.open(path) as photo:
                if claims_too_much(photo, path.stat().st_size):
                    raise DataFormatError(f"{path.name} claims {photo.width} x {photo.height} pixels: shrink it first.")
                return self._read(photo, path)
        except MhexError:
            raise
        except (*BROKEN, Image.DecompressionBombError) as error:
            raise DataFormatError(f"{path.name} cannot be decoded ({error}): place the file anew.") from error

    @abstractmethod
    def _read(self, photo: Image.Image, path: Path) -> np.ndarray[Any, Any]:
        """The square of an opened file."""


class PhotoFiles(_Files):
    """Photos in files, taken like rows of a tensor: ``files[rows]`` is (B, 3, side, side), uint8.

    Args:
        paths: The files.
        side: Side of the squares in pixels.
        fit: ``"crop"`` scales the shorter side and cuts out the middle; ``"squash"`` scales both sides.
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

    def _read(self, photo: Image.Image, path: Path) -> Bytes:
        photo.draft("RGB", (self.side, self.side))  # JPEG is decoded at a smaller scale where that suffices
        small = (upright_rgb if self.upright else plain_rgb)(photo, self.window, path.name)
        return np.asarray(fitted(small, self.side, self.fit)).transpose(2, 0, 1)


class MaskFiles(_Files):
    """Masks in files, taken like rows of a tensor: ``files[rows]`` is (B, side, side), of what ``read`` makes.

    Args:
        paths: The files: grey, or with a palette, whose places count.
        side: Side of the squares in pixels.
        fit: As for the photos they belong to.
        read: From the values (side, side), uint8, and the name of the file to the mask.
    """

    def __init__(
        self, paths: Sequence[Path], side: int, fit: Fit, read: Callable[[Bytes, str], np.ndarray[Any, Any]]
    ) -> None:
        super().__init__(paths, side, fit)
        self._made = read

    def _read(self, photo: Image.Image, path: Path) -> np.ndarray[Any, Any]:
        plain = photo if photo.mode in ("P", "L") else photo.convert("L")
        return self._made(np.asarray(fitted(plain, self.side, self.fit, nearest=True), dtype=np.uint8), path.name)


def object_mask(values: Bytes, name: str) -> np.ndarray[Any, np.dtype[np.int8]]:
    """A mask of one's own: 1 where it is not black, 0 elsewhere."""
    return (values > 0).astype(np.int8)


class Items(Sequence[dict[str, Any]]):
    """Dictionaries that are made when they are taken, so that a large collection is never in memory at once.

    Keys are those of `mhex.evaluate`: ``image`` (a photo) or ``text``, and beside it ``label``, ``mask``,
    ``rationale`` or ``other``. All items of a collection have the same keys.

    Args:
        count: How many.
        take: From a place 0..count-1 to the dictionary.
    """

    def __init__(self, count: int, take: Callable[[int], dict[str, Any]]) -> None:
        self._count = count
        self._take = take

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, place: int) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, place: slice) -> Items: ...

    def __getitem__(self, place: int | slice) -> dict[str, Any] | Items:
        if isinstance(place, slice):
            chosen = range(self._count)[place]
            return Items(len(chosen), lambda inner: self._take(chosen[inner]))
        if not -self._count <= place < self._count:
            raise IndexError(f"There are {self._count} items, and number {place} was asked for.")
        return self._take(place % self._count)


def one_photo(images: Tensor | PhotoRows, row: int) -> Image.Image:
    """One row of images (N, 3, H, W), uint8, as a photo."""
    pixels = images[torch.tensor([row])][0]
    return Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())


VOID = 255  # in maps of classes: a pixel that has no class


@dataclass(frozen=True, eq=False, kw_only=True)
class PhotoSet:
    """One split of a folder of photos; like `ImageSet`, with the photos decoded when they are taken.

    Attributes:
        images: N photos.
        labels: Class of each photo, (N,), int64, a place in ``classes``.
        classes: Names of the classes.
        split: The split that was asked for.
        names: Name of each photo.
        masks: Where the objects are, taken like rows of a tensor: (B, H, W), 1 there, 0 elsewhere, -1 to be ignored;
            None if not known.
        group_of: Always None: classes have no groups.
    """

    images: PhotoRows
    labels: Tensor
    classes: tuple[str, ...]
    split: str
    names: tuple[str, ...] = field(repr=False)
    masks: PhotoRows | None = None
    group_of: tuple[int, ...] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def items(self) -> Items:
        """The photos for `mhex.evaluate`: ``image``, ``label``, and ``mask`` where known."""
        return Items(len(self), self._item)

    def _item(self, row: int) -> dict[str, Any]:
        item: dict[str, Any] = {"image": one_photo(self.images, row), "label": int(self.labels[row])}
        return item if self.masks is None else {**item, "mask": self.masks[torch.tensor([row])][0].long()}


@dataclass(frozen=True, eq=False, kw_only=True)
class TwoClassSet(PhotoSet):
    """Photos that show things of several classes.

    Attributes:
        others: A second class of each photo, (N,), int64; -1 where there is none.
        present: All classes of each photo.
    """

    others: Tensor
    present: tuple[tuple[int, ...], ...] = field(repr=False)

    def _item(self, row: int) -> dict[str, Any]:
        return {**super()._item(row), "other": int(self.others[row])}


@dataclass(frozen=True, eq=False, kw_only=True)
class SegmentationSet:
    """Photos with a class for every pixel.

    Attributes:
        images: N photos, taken like rows of a tensor: (B, 3, H, W), uint8.
        maps: Class of each pixel, taken likewise: (B, H, W), uint8, a place in ``classes``, or 255 for none.
        classes: Names of the classes.
        background: The class that is no object; None where every class is one.
        split: The split that was asked for.
        names: Name of each photo.
    """

    images: Tensor | PhotoRows
    maps: Tensor | PhotoRows
    classes: tuple[str, ...]
    split: str
    names: tuple[str, ...] = field(repr=False)
    background: int | None = None

    def __len__(self) -> int:
        return len(self.names)

    def present(self) -> list[list[int]]:
        """The classes of each photo, the background left out, the largest first; reads all maps once."""
        found = []
        for start in range(0, len(self), 64):
            rows = torch.arange(start, min(start + 64, len(self)))
            for one in self.maps[rows]:
                counts = torch.bincount(one.flatten().long(), minlength=VOID + 1)[: len(self.classes)]
                order = counts.argsort(descending=True, stable=True).tolist()
                found.append([place for place in order if counts[place] and place != self.background])
        return found

    def items(self, of: str | None = None, *, labels: Sequence[str] | None = None) -> Items:
        """The photos for `mhex.evaluate`.

        Args:
            of: None marks all objects of a photo, without a label; the name of a class takes the photos that show it
                and marks it; ``"each"`` makes an item of every class of every photo, with another class of the photo
                as ``other`` (-1 for none).
            labels: Class names of the model, so that ``label`` and ``other`` are its numbers; classes that it does not
                know are left out. By default they are places in ``classes``.

        Returns:
            Items with ``image``, ``mask`` (1 at the object, 0 elsewhere, -1 where a pixel has no class), ``label``.

        Raises:
            ArgumentError: The class is unknown, or all objects are asked for where every class is one.
        """
        if of is None:
            if self.background is None:
                raise ArgumentError(
                    "Every pixel belongs to an object here: give of= the name of a class, such as "
                    f"{self.classes[-1]!r}, or 'each'."
                )
            return Items(len(self), partial(self._all_objects, self.background))
        if of != "each" and of not in self.classes:
            raise unknown_name("class", of, (*self.classes, "each"))
        known = {name: place for place, name in enumerate(self.classes if labels is None else labels)}
        pairs = []
        for row, places in enumerate(self.present()):
            told = [place for place in places if self.classes[place] in known]
            for place in told:
                if of in ("each", self.classes[place]):
                    other = next((known[self.classes[one]] for one in told if one != place), -1)
                    pairs.append((row, place, known[self.classes[place]], other))

        def take(number: int) -> dict[str, Any]:
            row, place, label, other = pairs[number]
            values = self.maps[torch.tensor([row])][0].long()
            mask = (values == place).long().masked_fill(values == VOID, -1)
            item = {"image": one_photo(self.images, row), "label": label, "mask": mask}
            return {**item, "other": other} if of == "each" else item

        return Items(len(pairs), take)

    def _all_objects(self, background: int, row: int) -> dict[str, Any]:
        values = self.maps[torch.tensor([row])][0].long()
        mask = (values != background).long().masked_fill(values == VOID, -1)
        return {"image": one_photo(self.images, row), "mask": mask}
