"""CamVid: street scenes with a class of eleven for every pixel."""

from __future__ import annotations

from mhex.lab.datasets.photo_files import VOID, SegmentationSet
from mhex.lab.datasets.sets import data_file
from mhex.lab.datasets.tables import DataFormatError, decode_images, pick_rows, read_columns

CAMVID_FILE = "camvid.parquet"
CAMVID_CLASSES = (
    *("sky", "building", "pole", "road", "pavement", "tree", "sign", "fence", "car", "pedestrian", "bicyclist"),
)


def load_camvid(split: str = "train", *, limit: int | None = None) -> SegmentationSet:
    """Load one split of CamVid from ``camvid.parquet`` in the data folder.

    Args:
        split: ``"train"``, ``"val"``, ``"test"`` or ``"all"``.
        limit: At most so many photos, evenly spaced over the split.

    Returns:
        The photos, (N, 3, 176, 240), with maps of their pixels' classes; 255 marks pixels without a class.

    Raises:
        DataMissingError: The file is missing; the message says what to place where.
        DataFormatError: The file does not hold what it should.
        ArgumentError: The split is unknown or the limit is not positive.
    """
    columns = ["name", "image", "mask", "split"]
    table = read_columns(data_file(CAMVID_FILE, f"CamVid with the columns {', '.join(columns)}"), columns)
    rows = pick_rows(table["split"], split, limit)
    maps = decode_images([table["mask"][row] for row in rows], "L")
    if int(maps.max()) > len(CAMVID_CLASSES):
        raise DataFormatError(
            f"Masks of {CAMVID_FILE} should hold the classes 0..10 and 11 for none, and {int(maps.max())} came: the "
            "file is damaged or of another data set."
        )
    return SegmentationSet(
        images=decode_images([table["image"][row] for row in rows]),
        maps=maps.masked_fill(maps == len(CAMVID_CLASSES), VOID),
        classes=CAMVID_CLASSES,
        split=split,
        names=tuple(table["name"][row] for row in rows),
    )
