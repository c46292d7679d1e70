"""ImageNet-1k from a folder of photos, and the names of its classes."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch

from mhex._optional import require
from mhex.data.folder import DataMissingError, data_folder
from mhex.data.photo_files import PHOTO_SUFFIXES, PhotoFiles
from mhex.data.photo_sets import PhotoSet
from mhex.data.table import pick_rows

IMAGENET_FOLDER = "imagenet"
SPLITS = ("train", "val")


@cache
def imagenet_synsets() -> dict[str, str]:
    """The 1000 classes of ImageNet-1k in their order, synset to names: ``{"n01440764": "tench, Tinca tinca", ...}``."""
    known = require("timm.data").ImageNetInfo("imagenet-1k")
    return {name: known.label_name_to_description(name) for name in known.label_names()}


def class_photos(root: Path, classes: list[str]) -> list[tuple[Path, int]]:
    """The photos in ``root/CLASS/`` with the places of their classes, in the order of classes and names."""
    return [
        (path, place)
        for place, name in enumerate(classes)
        for path in sorted((root / name).glob("*"))
        if path.suffix.lower() in PHOTO_SUFFIXES
    ]


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
    wanted = SPLITS if split == "all" else (split,)
    files = [found for part in wanted for found in class_photos(root / part, classes)]
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
