"""ImageNet-1k from a folder of photos, decoded batch by batch since all of it fits into no memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from mhex.data.folder import DataMissingError, data_folder
from mhex.data.table import DataFormatError, pick_rows

IMAGENET_FOLDER = "imagenet"
SPLITS = ("train", "val")
SUFFIXES = (".jpeg", ".jpg", ".png")


class PhotoFiles:
    """Photos in files, taken like rows of a tensor: ``files[rows]`` is (B, 3, side, side), uint8.

    Each photo is scaled so that its shorter side fits and the middle square is cut out.

    Args:
        paths: The files.
        side: Side of the squares in pixels.
    """

    def __init__(self, paths: Sequence[Path], side: int) -> None:
        self.paths = tuple(paths)
        self.side = side
        self._pool = ThreadPoolExecutor(max_workers=min(16, os.cpu_count() or 1))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, rows: Tensor) -> Tensor:
        return torch.from_numpy(np.stack(list(self._pool.map(self._read, rows.tolist()))))

    def _read(self, row: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        path = self.paths[row]
        try:
            with Image.open(path) as photo:
                photo.draft("RGB", (self.side, self.side))  # JPEG is decoded at a smaller scale where that suffices
                small = photo.convert("RGB")
        except OSError as error:
            raise DataFormatError(f"{path.name} cannot be decoded ({error}): place the photo anew.") from error
        scale = self.side / min(small.size)
        width, height = (max(self.side, round(length * scale)) for length in small.size)
        left, top = (width - self.side) // 2, (height - self.side) // 2
        small = small.resize((width, height), Image.Resampling.BICUBIC)
        return np.asarray(small.crop((left, top, left + self.side, top + self.side))).transpose(2, 0, 1)


@dataclass(frozen=True, eq=False, kw_only=True)
class PhotoSet:
    """One split of a folder of photos; like `ImageSet`, with the photos decoded when they are taken.

    Attributes:
        images: N photos.
        labels: Class of each photo, (N,), int64, a place in ``classes``.
        classes: Names of the classes.
        split: The split that was asked for.
        names: Name of each photo.
        group_of: Always None: classes have no groups.
    """

    images: PhotoFiles
    labels: Tensor
    classes: tuple[str, ...]
    split: str
    names: tuple[str, ...] = field(repr=False)
    group_of: tuple[int, ...] | None = None

    def __len__(self) -> int:
        return len(self.labels)


def load_imagenet(split: str = "train", *, limit: int | None = None, side: int = 256) -> PhotoSet:
    """List one split of ImageNet-1k in the data folder, laid out as ``imagenet/train/SYNSET/*.JPEG``.

    Args:
        split: ``"train"`` or ``"val"``.
        limit: At most so many photos, evenly spaced over the split.
        side: Side of the squares that photos are cut to when they are taken.

    Returns:
        The photos with their labels; classes are the synsets of ``train`` in alphabetical order.

    Raises:
        DataMissingError: A folder is missing or empty; the message says what to place where.
        ArgumentError: The split is unknown or the limit is not positive.
    """
    pick_rows(SPLITS, split)
    root = data_folder() / IMAGENET_FOLDER
    classes = sorted(entry.name for entry in (root / "train").glob("*/")) if (root / "train").is_dir() else []
    place_of = {name: place for place, name in enumerate(classes)}
    wanted = SPLITS if split == "all" else (split,)
    files = [
        (path, place_of[name])
        for part in wanted
        for name in classes
        for path in sorted((root / part / name).glob("*"))
        if path.suffix.lower() in SUFFIXES
    ]
    if not files:
        raise DataMissingError(
            f"The photos of ImageNet-1k are not in {str(root)!r}: place them there as {'/'.join((wanted[0], 'SYNSET'))}"
            "/*.JPEG, with the folders train and val, 1000 synsets each."
        )
    rows = pick_rows([split] * len(files), split, limit)
    return PhotoSet(
        images=PhotoFiles([files[row][0] for row in rows], side),
        labels=torch.tensor([files[row][1] for row in rows]),
        classes=tuple(classes),
        split=split,
        names=tuple(files[row][0].stem for row in rows),
    )
