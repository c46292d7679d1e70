"""CIFAR-10: small photos of ten kinds of things, used for pretraining."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mhex.data.folder import data_file
from mhex.data.table import DataFormatError, decode_images, pick_rows, read_columns

CIFAR10_FILE = "cifar10.parquet"
CIFAR10_DESCRIPTION = "CIFAR-10 with the columns image, label and split"
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@dataclass(frozen=True, eq=False)
class Cifar10:
    """One split of CIFAR-10.

    Attributes:
        images: Photos, (N, 3, H, W), uint8.
        labels: Class of each photo, (N,), int64, a place in ``classes``.
        classes: Names of the ten classes.
        split: The split that was asked for.
    """

    images: Tensor
    labels: Tensor
    split: str
    classes: tuple[str, ...] = CIFAR10_CLASSES

    def __len__(self) -> int:
        return len(self.labels)


def load_cifar10(split: str = "train", *, limit: int | None = None) -> Cifar10:
    """Load one split of CIFAR-10 from ``cifar10.parquet`` in the data folder.

    Args:
        split: ``"train"``, ``"test"`` or ``"all"``.
        limit: At most so many photos, evenly spaced over the split.

    Returns:
        The photos with their labels.

    Raises:
        DataMissingError: The file is missing; the message says what to place where.
        DataFormatError: The file does not hold what it should.
        ArgumentError: The split is unknown or the limit is not positive.
    """
    path = data_file(CIFAR10_FILE, CIFAR10_DESCRIPTION)
    table = read_columns(path, ["image", "label", "split"])
    rows = pick_rows(table["split"], split, limit)
    labels = torch.tensor([table["label"][row] for row in rows])
    if int(labels.min()) < 0 or int(labels.max()) >= len(CIFAR10_CLASSES):
        raise DataFormatError(
            f"Labels of CIFAR-10 should lie in 0..9, and {int(labels.min())}..{int(labels.max())} came: the file is "
            "damaged or of another data set."
        )
    return Cifar10(images=decode_images([table["image"][row] for row in rows]), labels=labels, split=split)
