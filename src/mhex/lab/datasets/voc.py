"""PASCAL VOC 2012: photos with a class of twenty, or background, for every pixel."""

from __future__ import annotations

import numpy as np

from mhex.lab.datasets.photo_files import VOID, Bytes, Fit, MaskFiles, PhotoFiles, SegmentationSet
from mhex.lab.datasets.sets import DataMissingError, data_folder
from mhex.lab.datasets.tables import DataFormatError, pick_rows

VOC_FOLDER = "VOCdevkit/VOC2012"
VOC_CLASSES = (
    *("background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)
SPLITS = ("train", "val")


def load_voc(split: str = "val", *, limit: int | None = None, side: int = 224, fit: Fit = "squash") -> SegmentationSet:
    """List one split of PASCAL VOC 2012 segmentation in the data folder, laid out as published.

    Args:
        split: ``"train"``, ``"val"`` or ``"all"`` for both.
        limit: At most so many photos, evenly spaced over the split.
        side: Side of the squares in pixels.
        fit: ``"squash"``, or ``"crop"`` for the middle square.

    Returns:
        The photos with maps of their pixels' classes, where 255 marks borders and what is hard to tell.

    Raises:
        DataMissingError: A file is missing; the message says what to place where.
        ArgumentError: The split is unknown or the limit is not positive.
    """
    pick_rows(SPLITS, split)
    root = data_folder() / VOC_FOLDER
    lists = [root / "ImageSets" / "Segmentation" / f"{part}.txt" for part in (SPLITS if split == "all" else (split,))]
    for path in lists:
        if not path.is_file():
            raise DataMissingError(
                f"PASCAL VOC 2012 is not in {str(root)!r}, since ImageSets/Segmentation/{path.name} is missing: place "
                f"the folder VOCdevkit there with VOC2012/JPEGImages, SegmentationClass and ImageSets, as published."
            )
    names = [name for path in lists for name in path.read_text(encoding="utf-8").split()]
    chosen = [names[row] for row in pick_rows([split] * len(names), split, limit)]
    photos = [root / "JPEGImages" / f"{name}.jpg" for name in chosen]
    maps = [root / "SegmentationClass" / f"{name}.png" for name in chosen]
    missing = next((path for path in (*photos, *maps) if not path.is_file()), None)
    if missing is not None:
        raise DataMissingError(f"{missing.name} is listed and not in {str(missing.parent)!r}: place it there.")
    return SegmentationSet(
        images=PhotoFiles(photos, side, fit),
        maps=MaskFiles(maps, side, fit, _classes),
        classes=VOC_CLASSES,
        background=0,
        split=split,
        names=tuple(chosen),
    )


def _classes(values: Bytes, name: str) -> Bytes:
    wrong = values[(values >= len(VOC_CLASSES)) & (values != VOID)]
    if len(wrong):
        raise DataFormatError(
            f"{name} should hold the classes 0..20 and 255, as a picture with a palette, and {int(wrong[0])} came: "
            "place the published file."
        )
    return np.ascontiguousarray(values)
