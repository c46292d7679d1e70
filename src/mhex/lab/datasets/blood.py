"""Peripheral blood cells: photos of eight kinds of cells, the source of BloodMNIST."""

from __future__ import annotations

from mhex.lab.datasets.sets import ImageSet, checked_labels, data_file
from mhex.lab.datasets.tables import decode_images, pick_rows, read_columns

BLOOD_FILE = "blood.parquet"
BLOOD_DESCRIPTION = "PBC peripheral blood cells with the columns name, image, label and split"
BLOOD_CLASSES = (
    "basophil",
    "eosinophil",
    "erythroblast",
    "immature granulocyte",
    "lymphocyte",
    "monocyte",
    "neutrophil",
    "platelet",
)


def load_blood(split: str = "train", *, limit: int | None = None) -> ImageSet:
    """Load one split of the blood cells from ``blood.parquet`` in the data folder.

    Args:
        split: ``"train"``, ``"val"``, ``"test"`` or ``"all"``.
        limit: At most so many photos, evenly spaced over the split.

    Returns:
        The photos, (N, 3, 96, 96), with their labels.

    Raises:
        DataMissingError: The file is missing; the message says what to place where.
        DataFormatError: The file does not hold what it should.
        ArgumentError: The split is unknown or the limit is not positive.
    """
    table = read_columns(data_file(BLOOD_FILE, BLOOD_DESCRIPTION), ["name", "image", "label", "split"])
    rows = pick_rows(table["split"], split, limit)
    return ImageSet(
        images=decode_images([table["image"][row] for row in rows]),
        labels=checked_labels([table["label"][row] for row in rows], BLOOD_CLASSES, "the blood cells"),
        classes=BLOOD_CLASSES,
        split=split,
        names=tuple(table["name"][row] for row in rows),
    )
