"""CIFAR-10: small photos of ten kinds of things, used for pretraining."""

from __future__ import annotations

from mhex.data.folder import data_file
from mhex.data.sets import ImageSet, checked_labels
from mhex.data.table import decode_images, pick_rows, read_columns

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
