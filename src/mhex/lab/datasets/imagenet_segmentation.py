"""ImageNet-Segmentation: 4,276 photos of ImageNet with the pixels of their object, in a MATLAB file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from mhex.errors import ArgumentError, MhexError, require
from mhex.lab.datasets.imagenet import imagenet_synsets
from mhex.lab.datasets.photo_files import Fit, PhotoRows, PhotoSet, SegmentationSet, fitted
from mhex.lab.datasets.sets import data_file
from mhex.lab.datasets.tables import DataFormatError, pick_rows

SEGMENTATION_FILE = "gtsegs_ijcv.mat"
FIELDS = ("img", "gt", "target")


class MatRows:
    """Photos or maps of the MATLAB file, read when they are taken.

    ``rows[numbers]`` is (B, 3, side, side) of photos and (B, side, side) of maps, uint8.

    Args:
        path: The file, of MATLAB 7.3, which is HDF5.
        kept: Numbers of the photos in the file.
        field: ``"img"`` or ``"gt"``.
        side: Side of the squares in pixels.
        fit: How they become squares.
    """

    def __init__(self, path: Path, kept: Sequence[int], field: str, side: int, fit: Fit) -> None:
        self.path, self.kept, self.field, self.side, self.fit = path, tuple(kept), field, side, fit

    def __len__(self) -> int:
        return len(self.kept)

    def __getitem__(self, rows: Tensor) -> Tensor:
        with _opened(self.path) as file:
            return torch.from_numpy(np.stack([self._square(file, self.kept[row]) for row in rows.tolist()]))

    def _square(self, file: Any, number: int) -> np.ndarray[Any, Any]:
        array = followed(file, file[f"value/{self.field}"][number, 0])
        if self.field == "img":
            # MATLAB counts along columns first, so axes come in reverse: (3, W, H), and (W, H) of a grey photo.
            photo = Image.fromarray(np.ascontiguousarray(array.T, dtype=np.uint8)).convert("RGB")
            return np.asarray(fitted(photo, self.side, self.fit)).transpose(2, 0, 1)
        if not set(np.unique(array).tolist()) <= {0, 1, 255}:
            raise DataFormatError(
                f"Maps of {self.path.name} should hold 0, 1 and 255, and photo {number} has "
                f"{np.unique(array).tolist()[:8]}: place the right file in the data folder."
            )
        plain = Image.fromarray(np.ascontiguousarray(array.T, dtype=np.uint8))
        return np.asarray(fitted(plain, self.side, self.fit, nearest=True))


@dataclass(frozen=True, eq=False, kw_only=True)
class ImageNetSegmentation(SegmentationSet):
    """Photos with the pixels of one object.

    Attributes:
        synsets: Of the object of each photo.
    """

    synsets: tuple[str, ...]

    def known(self) -> PhotoSet:
        """The photos whose class is one of the 1000 of ImageNet-1k, with that as their label, and masks."""
        order = {name: place for place, name in enumerate(imagenet_synsets())}
        rows = torch.tensor([row for row, name in enumerate(self.synsets) if name in order], dtype=torch.int64)
        if not len(rows):
            raise ArgumentError("None of these photos has a class of ImageNet-1k: take more of them.")
        return PhotoSet(
            images=_Part(self.images, rows),
            labels=torch.tensor([order[self.synsets[row]] for row in rows.tolist()]),
            classes=tuple(order),
            split=self.split,
            names=tuple(self.names[row] for row in rows.tolist()),
            masks=_Part(self.maps, rows, signed=True),
        )


class _Part:
    """Some rows of others; of maps with 255 as -1."""

    def __init__(self, whole: Tensor | PhotoRows, rows: Tensor, *, signed: bool = False) -> None:
        self.whole, self.rows, self.signed = whole, rows, signed

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: Tensor) -> Tensor:
        taken = self.whole[self.rows[rows]]
        return taken.view(torch.int8) if self.signed else taken


def load_imagenet_segmentation(
    split: str = "test", *, limit: int | None = None, side: int = 224, fit: Fit = "squash"
) -> ImageNetSegmentation:
    """List ImageNet-Segmentation from ``gtsegs_ijcv.mat`` in the data folder; needs h5py (``mhex[data]``).

    Args:
        split: ``"test"`` or ``"all"``, which are the same: all of it is for judging.
        limit: At most so many photos, evenly spaced.
        side: Side of the squares in pixels.
        fit: ``"squash"`` as in the papers, which crop nothing, or ``"crop"``.

    Returns:
        The photos, classes background and object; `known` gives those with a label of ImageNet-1k.

    Raises:
        DataMissingError: The file is missing; the message says what to place where.
        DataFormatError: The file does not hold what it should.
        MissingExtraError: h5py is not installed.
        ArgumentError: The split is unknown or the limit is not positive.
    """
    path = data_file(SEGMENTATION_FILE, "ImageNet-Segmentation, with the fields value/img, value/gt and value/target")
    pick_rows(["test"], split)
    with _opened(path) as file:
        if not all(f"value/{field}" in file for field in FIELDS):
            raise DataFormatError(
                f"{path.name} should have the fields {[f'value/{field}' for field in FIELDS]}, and lacks one: "
                "place the right file in the data folder."
            )
        count = len(file["value/img"])
        rows = pick_rows(["test"] * count, split, limit)
        synsets = ["".join(map(chr, followed(file, file["value/target"][row, 0]).flatten().tolist())) for row in rows]
    return ImageNetSegmentation(
        images=MatRows(path, rows, "img", side, fit),
        maps=MatRows(path, rows, "gt", side, fit),
        classes=("background", "object"),
        background=0,
        split=split,
        names=tuple(str(row) for row in rows),
        synsets=tuple(synsets),
    )


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """The file; what goes wrong while it is open is the file's fault, whatever h5py calls it."""
    try:
        with require("h5py", "data").File(path, "r") as file:
            yield file
    except MhexError:
        raise
    except (OSError, RuntimeError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        raise DataFormatError(f"{path.name} is not a file of MATLAB 7.3 (HDF5), or damaged ({error}).") from error


def followed(file: Any, reference: Any) -> np.ndarray[Any, Any]:
    """The array that a reference leads to; a cell of one entry leads on to the array in it."""
    found = np.asarray(file[reference])
    while found.dtype == object:
        found = np.asarray(file[found.flat[0]])
    return found
