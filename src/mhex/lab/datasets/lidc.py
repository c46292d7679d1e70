"""Lung nodules in the manner of LIDC-IDRI: crops of CT images with ratings by radiologists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from mhex.errors import unknown_name
from mhex.lab.datasets.personal import column, numbers, read_table
from mhex.lab.datasets.photo_files import PhotoFiles, PhotoSet
from mhex.lab.datasets.sets import DataMissingError, ValueSet, data_file
from mhex.lab.datasets.tables import DataFormatError, pick_rows

LIDC_FILE = "lidc/nodules.csv"
LIDC_CLASSES = ("benign", "malignant")
UNSURE = 3.0
SHARES = {"test": 0.15, "val": 0.1275}  # the rest, 0.7225, is for learning


class _Nodules(NamedTuple):
    table: dict[str, list[str]]
    malignancy: list[float]
    splits: list[str]
    images: list[str]


def load_lidc(split: str = "train", *, limit: int | None = None, side: int = 64, threshold: float = UNSURE) -> PhotoSet:
    """List one split of the nodules, benign or malignant; those rated exactly at the threshold are left out.

    The data folder has ``lidc/nodules.csv`` with the columns ``image`` (path from ``lidc``), ``malignancy`` (mean
    rating 1..5), others with numbers, which are biomarkers, and perhaps ``split``. Without splits a fixed draw is made,
    15 % test and 12.75 % val of the benign, the malignant and the unsure each.

    Args:
        split: ``"train"``, ``"val"``, ``"test"`` or ``"all"``.
        limit: At most so many nodules, evenly spaced over the split.
        side: Side of the squares that crops are made to when they are taken.
        threshold: Above it a nodule is malignant, below benign.

    Returns:
        The crops with their labels.

    Raises:
        DataMissingError: The table or a crop is missing; the message says what to place where.
        DataFormatError: The table does not hold what it should.
        ArgumentError: The split is unknown or the limit is not positive.
    """
    read = _read()
    sure = [row for row, rating in enumerate(read.malignancy) if rating != threshold]
    rows = [sure[place] for place in pick_rows([read.splits[row] for row in sure], split, limit)]
    return PhotoSet(
        images=_crops(read, rows, side),
        labels=torch.tensor([int(read.malignancy[row] > threshold) for row in rows]),
        classes=LIDC_CLASSES,
        split=split,
        names=tuple(read.images[row] for row in rows),
    )


def load_lidc_biomarkers(
    split: str = "train", *, limit: int | None = None, side: int = 64, biomarkers: Sequence[str] | None = None
) -> ValueSet:
    """List one split of the nodules with their biomarkers as values, for regression; none is left out.

    Args:
        split: ``"train"``, ``"val"``, ``"test"`` or ``"all"``; a nodule is in the same split as in `load_lidc`.
        limit: At most so many nodules, evenly spaced over the split.
        side: Side of the squares that crops are made to when they are taken.
        biomarkers: Columns of ``lidc/nodules.csv``, also ``malignancy``; by default all others.

    Returns:
        The crops with values (N, K).

    Raises:
        DataMissingError: The table or a crop is missing; the message says what to place where.
        DataFormatError: The table does not hold what it should.
        ArgumentError: The split or a biomarker is unknown or the limit is not positive.
    """
    read = _read()
    present = [name for name in read.table if name not in ("image", "split")]
    wanted = [name for name in present if name != "malignancy"] if biomarkers is None else list(biomarkers)
    for name in wanted:
        if name not in present:
            raise unknown_name("biomarker", name, present)
    if not wanted:
        raise DataFormatError(f"{LIDC_FILE} should have columns with biomarkers, and has {list(read.table)}: add some.")
    rows = pick_rows(read.splits, split, limit)
    values = torch.tensor([numbers(read.table[name], name, LIDC_FILE) for name in wanted]).T
    return ValueSet(
        images=_crops(read, rows, side),
        values=values[rows],
        value_names=tuple(wanted),
        split=split,
        names=tuple(read.images[row] for row in rows),
    )


def _read() -> _Nodules:
    path = data_file(LIDC_FILE, "lung nodules with the columns image, malignancy and biomarkers, crops beside it")
    table = read_table(path)
    ratings = numbers(column(table, "malignancy", LIDC_FILE), "malignancy", LIDC_FILE)
    if min(ratings) < 1 or max(ratings) > 5:
        raise DataFormatError(f"Ratings of malignancy should lie in 1..5, and {min(ratings)}..{max(ratings)} came.")
    images = column(table, "image", LIDC_FILE)
    return _Nodules(table, ratings, table.get("split") or drawn_splits(ratings), images)


def drawn_splits(ratings: Sequence[float]) -> list[str]:
    """A split for each nodule, in equal shares of the benign, the malignant and the unsure; always the same draw."""
    found = ["train"] * len(ratings)
    order = torch.randperm(len(ratings), generator=torch.Generator().manual_seed(0)).tolist()
    for kind in (-1, 0, 1):
        rows = [row for row in order if (ratings[row] > UNSURE) - (ratings[row] < UNSURE) == kind]
        tests, kept = (round(share * len(rows)) for share in SHARES.values())
        for place, row in enumerate(rows[: tests + kept]):
            found[row] = "test" if place < tests else "val"
    return found


def _crops(read: _Nodules, rows: Sequence[int], side: int) -> PhotoFiles:
    folder = data_file(LIDC_FILE, "lung nodules").parent
    paths = [folder / read.images[row] for row in rows]
    missing = next((path for path in paths if not path.is_file()), None)
    if missing is not None:
        raise DataMissingError(f"{LIDC_FILE} names {str(missing)!r}, which is not there: place it there.")
    return PhotoFiles(paths, side)
