"""CIFAR-10: small photos of ten kinds of things, used for pretraining."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from mhex.lab.datasets.sets import DataMissingError, ImageSet, checked_labels, data_file, data_folder
from mhex.lab.datasets.tables import DataFormatError, decode_images, pick_rows, read_columns

CIFAR10_FOLDER, CIFAR100_FOLDER = "cifar-10-batches-bin", "cifar-100-binary"
PIXELS = 3 * 32 * 32
SPLITS = ("train", "test")
_FILES_10 = {"train": tuple(f"data_batch_{k}.bin" for k in range(1, 6)), "test": ("test_batch.bin",)}
_FILES_100 = {"train": ("train.bin",), "test": ("test.bin",)}


def load_cifar10_binary(split: str = "train", *, limit: int | None = None) -> ImageSet:
    """Load one split of CIFAR-10 from ``cifar-10-batches-bin`` in the data folder.

    Args:
        split: ``"train"``, ``"test"`` or ``"all"``.
        limit: At most so many photos, evenly spaced over the split.

    Returns:
        The photos, (N, 3, 32, 32), with their labels; a photo is named by its split and place.

    Raises:
        DataMissingError: A file is missing, or only the pickled version is there; the message says what to place.
        DataFormatError: A file does not hold what it should.
        ArgumentError: The split is unknown or the limit is not positive.
    """
    folder = data_folder() / CIFAR10_FOLDER
    records, names = _records(folder, _FILES_10, split, limit, labels=1, pickled="cifar-10-batches-py")
    return ImageSet(
        images=_images(records, 1),
        labels=checked_labels(records[:, 0].tolist(), CIFAR10_CLASSES, "CIFAR-10"),
        classes=CIFAR10_CLASSES,
        split=split,
        names=names,
    )


def load_cifar100(split: str = "train", *, limit: int | None = None) -> ImageSet:
    """Load one split of CIFAR-100 from ``cifar-100-binary`` in the data folder.

    Args:
        split: ``"train"``, ``"test"`` or ``"all"``.
        limit: At most so many photos, evenly spaced over the split.

    Returns:
        The photos, (N, 3, 32, 32), with the 100 fine classes as labels and the 20 coarse ones as groups.

    Raises:
        DataMissingError: A file is missing, or only the pickled version is there; the message says what to place.
        DataFormatError: A file does not hold what it should.
        ArgumentError: The split is unknown or the limit is not positive.
    """
    folder = data_folder() / CIFAR100_FOLDER
    records, names = _records(folder, _FILES_100, split, limit, labels=2, pickled="cifar-100-python")
    fine, coarse = (_words(folder / f"{kind}_label_names.txt") for kind in ("fine", "coarse"))
    labels = checked_labels(records[:, 1].tolist(), fine, "CIFAR-100")
    # Which coarse class a fine one belongs to is told by the photos alone, so all of a file are looked at.
    everything = _read(folder / _FILES_100["train" if split == "all" else split][0], 2)
    groups: dict[int, int] = {}
    for group, place in np.unique(everything[:, :2], axis=0).tolist():
        if groups.setdefault(place, group) != group or group >= len(coarse):
            raise DataFormatError(
                f"Each fine class of CIFAR-100 should belong to one of {len(coarse)} coarse ones, and {place} belongs "
                f"to {groups[place]} and {group}: place the published file."
            )
    if sorted(groups) != list(range(len(fine))):
        raise DataFormatError(
            f"All {len(fine)} fine classes should occur, and only {len(groups)} do: place the file anew."
        )
    return ImageSet(
        images=_images(records, 2),
        labels=labels,
        classes=fine,
        split=split,
        names=names,
        group_of=tuple(groups[place] for place in range(len(fine))),
        group_names=coarse,
    )


def _records(
    folder: Path, files: Mapping[str, tuple[str, ...]], split: str, limit: int | None, *, labels: int, pickled: str
) -> tuple[np.ndarray[tuple[int, int], np.dtype[np.uint8]], tuple[str, ...]]:
    """Records of one split, (N, labels + 3072), and names."""
    pick_rows(SPLITS, split)
    parts = SPLITS if split == "all" else (split,)
    for path in (folder / name for part in parts for name in files[part]):
        if not path.is_file():
            beside = (
                f" The folder {pickled} is there, and is not read, since its files are pickles, which can run any code."
                if (folder.parent / pickled).is_dir()
                else ""
            )
            raise DataMissingError(
                f"{path.name} is not in {str(folder)!r}: place the binary version of the data set there, as "
                f"published.{beside}"
            )
    read = [(_read(folder / name, labels), part) for part in parts for name in files[part]]
    records = np.concatenate([one for one, _ in read])
    counts = {part: sum(len(one) for one, of in read if of == part) for part in parts}
    names = [f"{part}-{place}" for part in parts for place in range(counts[part])]
    rows = pick_rows([split] * len(records), split, limit)
    return records[rows], tuple(names[row] for row in rows)


def _read(path: Path, labels: int) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    values = np.fromfile(path, dtype=np.uint8)
    if not len(values) or len(values) % (labels + PIXELS):
        raise DataFormatError(
            f"{path.name} should hold records of {labels + PIXELS} bytes, and has {len(values)} bytes: place the "
            "published file."
        )
    return values.reshape(-1, labels + PIXELS)


def _images(records: np.ndarray[tuple[int, int], np.dtype[np.uint8]], labels: int) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(records[:, labels:])).reshape(-1, 3, 32, 32)


def _words(path: Path) -> tuple[str, ...]:
    if not path.is_file():
        raise DataMissingError(f"{path.name} is not in {str(path.parent)!r}: place it there, as published.")
    return tuple(path.read_text(encoding="utf-8").split())


CIFAR10_FILE = "cifar10.parquet"
CIFAR10_DESCRIPTION = "CIFAR-10 with the columns image, label and split"
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def load_cifar10(split: str = "train", *, limit: int | None = None) -> ImageSet:
    """Load one split of CIFAR-10 from ``cifar10.parquet`` in the data folder.

    Args:
        split: ``"train"``, ``"test"`` or ``"all"``.
        limit: At most so many photos, evenly spaced over the split.

    Returns:
        The photos with their labels; a photo is named by its row.

    Raises:
        DataMissingError: The file is missing; the message says what to place where.
        DataFormatError: The file does not hold what it should.
        ArgumentError: The split is unknown or the limit is not positive.
    """
    table = read_columns(data_file(CIFAR10_FILE, CIFAR10_DESCRIPTION), ["image", "label", "split"])
    rows = pick_rows(table["split"], split, limit)
    return ImageSet(
        images=decode_images([table["image"][row] for row in rows]),
        labels=checked_labels([table["label"][row] for row in rows], CIFAR10_CLASSES, "CIFAR-10"),
        classes=CIFAR10_CLASSES,
        split=split,
        names=tuple(str(row) for row in rows),
    )
