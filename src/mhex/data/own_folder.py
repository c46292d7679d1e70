"""Photos of one's own: a folder for each class."""

from __future__ import annotations

from pathlib import Path

import torch

from mhex._photo import Window
from mhex.data.folder import DataMissingError
from mhex.data.imagenet import class_photos
from mhex.data.photo_files import PHOTO_SUFFIXES, Fit, MaskFiles, PhotoFiles, object_mask
from mhex.data.photo_sets import PhotoSet
from mhex.data.table import pick_rows
from mhex.errors import ArgumentError

SPLITS = ("train", "val", "test")


def load_folder(
    folder: str | Path,
    split: str = "all",
    *,
    limit: int | None = None,
    masks: str | Path | None = None,
    side: int = 256,
    fit: Fit = "crop",
    window: Window | None = None,
) -> PhotoSet:
    """List photos in ``FOLDER/CLASS/*.jpg``, or in ``FOLDER/SPLIT/CLASS/*.jpg`` with splits train, val and test.

    Args:
        folder: The folder.
        split: ``"train"``, ``"val"``, ``"test"``, or ``"all"`` for every photo; without splits only ``"all"``.
        limit: At most so many photos, evenly spaced.
        masks: Folder laid out as the other, with a PNG of the same name for each photo, not black where the object is.
        side: Side of the squares that photos are made to when they are taken.
        fit: ``"crop"`` cuts out the middle square, ``"squash"`` scales both sides.
        window: Values that become black and white, for photos of more than 8 bits that do not say them themselves.

    Returns:
        The photos, decoded when they are taken; classes are the names of the folders in alphabetical order.

    Raises:
        DataMissingError: The folder, its photos or a mask are missing; the message says what to place where.
        ArgumentError: The split is unknown or the limit is not positive.
    """
    root = Path(folder).expanduser()
    parts = [part for part in SPLITS if (root / part).is_dir() and any((root / part).glob("*/"))]
    if split != "all" and split not in parts:
        raise _no_split(root, split, parts) if root.is_dir() else _nothing(root)
    roots = [root / part for part in parts] or [root]
    classes = sorted({entry.name for one in roots for entry in one.glob("*/") if not entry.name.startswith(".")})
    wanted = roots if split == "all" else [root / split]
    files = [found for one in wanted for found in class_photos(one, classes)]
    if not files:
        raise _nothing(root)
    chosen = [files[row] for row in pick_rows([split] * len(files), split, limit)]
    paths = [path for path, _ in chosen]
    return PhotoSet(
        images=PhotoFiles(paths, side, fit, upright=True, window=window),
        labels=torch.tensor([place for _, place in chosen]),
        classes=tuple(classes),
        split=split,
        names=tuple(path.stem for path in paths),
        masks=None if masks is None else _masks(paths, root, Path(masks).expanduser(), side, fit),
    )


def _masks(paths: list[Path], root: Path, masks: Path, side: int, fit: Fit) -> MaskFiles:
    found = [(masks / path.relative_to(root)).with_suffix(".png") for path in paths]
    missing = next((path for path in found if not path.is_file()), None)
    if missing is not None:
        raise DataMissingError(f"There is no mask {str(missing)!r}: place one there for each photo, with its name.")
    return MaskFiles(found, side, fit, object_mask)


def _no_split(root: Path, split: str, parts: list[str]) -> ArgumentError:
    return ArgumentError(
        f"split should be one of {[*parts, 'all']}, the folders of {str(root)!r}, not {split!r}; make a folder "
        f"{split!r} there with a folder for each class."
    )


def _nothing(root: Path) -> DataMissingError:
    flat = [path for path in root.iterdir() if path.suffix.lower() in PHOTO_SUFFIXES] if root.is_dir() else []
    state = "None of the photos is in a folder of its class" if flat else "There are no photos"
    return DataMissingError(
        f"{state} in {str(root)!r}: place them with a folder for each class, as CLASS/photo.jpg, or with splits, as "
        "train/CLASS/photo.jpg and test/CLASS/photo.jpg. A list of photos without classes serves mhex.evaluate and "
        "mhex.recommend too."
    )
