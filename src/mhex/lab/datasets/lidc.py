"""Lung nodules in the manner of LIDC-IDRI: crops of CT images with ratings by radiologists."""

from collections.abc import Sequence
from typing import Any

import torch

from mhex.errors import unknown_name
from mhex.lab.datasets import files
from mhex.lab.datasets.catalogue import register_data
from mhex.lab.datasets.sets import PhotoSet, ValueSet
from mhex.lab.datasets.source import Source

LIDC_FILE = "lidc/nodules.csv"
SOURCE = Source("https://www.cancerimagingarchive.net/collection/lidc-idri", LIDC_FILE)
LIDC_CLASSES = ("benign", "malignant")
UNSURE = 3.0
SHARES = {"test": 0.15, "val": 0.1275}  # the rest, 0.7225, is for learning
FACTS: dict[str, Any] = {
    "title": "Lung nodules of LIDC-IDRI",
    "licence": "CC BY 3.0",
    "citation": "S. G. Armato III et al.: The Lung Image Database Consortium (LIDC) and Image Database Resource "
    "Initiative (IDRI). Medical Physics, 2011.",
}


@register_data(
    "lidc",
    **FACTS,
    form="crops at 64 x 64 pixels, mean rating of malignancy below or above 3",
    files="`lidc/nodules.csv`: image, malignancy, biomarkers, perhaps split; crops beside it",
    source=SOURCE,
)
def load_lidc(split: str = "train", *, limit: int | None = None, side: int = 64, threshold: float = UNSURE) -> PhotoSet:
    """List one split of the nodules, benign or malignant; those rated exactly at the threshold are left out.

    The data folder has ``lidc/nodules.csv`` with the columns ``image`` (path from ``lidc``), ``malignancy`` (mean
    rating 1..5), others with numbers, which are biomarkers, and perhaps ``split``. Without splits a fixed draw is made,
    15 % test and 12.75 % val of the benign, the malignant and the unsure each. Above the threshold a nodule is
    malignant, below benign. Crops are made to squares of ``side`` pixels when they are taken.
    """
    table, ratings, splits = _nodules()
    sure = [row for row, rating in enumerate(ratings) if rating != threshold]
    rows = [sure[place] for place in files.pick_rows([splits[row] for row in sure], split, limit)]
    images, names = _crops(table, rows, side)
    labels = torch.tensor([int(ratings[row] > threshold) for row in rows])
    return PhotoSet(images=images, labels=labels, classes=LIDC_CLASSES, split=split, names=names)


@register_data(
    "lidc_biomarkers",
    **FACTS,
    form="crops at 64 x 64 pixels with biomarkers as numbers",
    files="as for `lidc`",
    source=SOURCE,
    task="values",
)
def load_lidc_biomarkers(
    split: str = "train", *, limit: int | None = None, side: int = 64, biomarkers: Sequence[str] | None = None
) -> ValueSet:
    """List all nodules with their biomarkers as values (N, K), for regression, in the splits of `load_lidc`.

    Biomarkers are columns of ``lidc/nodules.csv``, also ``malignancy``; by default all others.
    """
    table, _, splits = _nodules()
    present = [name for name in table if name not in ("image", "split")]
    selection = [name for name in present if name != "malignancy"] if biomarkers is None else list(biomarkers)
    for name in selection:
        if name not in present:
            raise unknown_name("biomarker", name, present)
    if not selection:
        raise files.wrong_file(f"{LIDC_FILE} should have columns with biomarkers, and has {list(table)}", "add some")
    rows = files.pick_rows(splits, split, limit)
    values = torch.tensor([files.csv_numbers(table, name, LIDC_FILE) for name in selection]).T
    images, names = _crops(table, rows, side)
    return ValueSet(images=images, values=values[rows], value_names=tuple(selection), split=split, names=names)


def _nodules() -> tuple[dict[str, list[str]], list[float], list[str]]:
    """The table, and the rating and the split of each nodule."""
    path = files.data_file(LIDC_FILE, "lung nodules with the columns image, malignancy and biomarkers, crops beside it")
    table = files.read_csv(path)
    ratings = files.csv_numbers(table, "malignancy", LIDC_FILE)
    if min(ratings) < 1 or max(ratings) > 5:
        span = f"{min(ratings)}..{max(ratings)}"
        raise files.DataFormatError(f"Ratings of malignancy should lie in 1..5, and {span} came.")
    return table, ratings, table.get("split") or drawn_splits(ratings)


def drawn_splits(ratings: Sequence[float]) -> list[str]:
    """A split for each nodule, in equal shares of the benign, the malignant and the unsure; always the same draw."""
    splits = ["train"] * len(ratings)
    order = torch.randperm(len(ratings), generator=torch.Generator().manual_seed(0)).tolist()
    for kind in (-1, 0, 1):
        rows = [row for row in order if (ratings[row] > UNSURE) - (ratings[row] < UNSURE) == kind]
        tests, validations = (round(share * len(rows)) for share in SHARES.values())
        for place, row in enumerate(rows[: tests + validations]):
            splits[row] = "test" if place < tests else "val"
    return splits


def _crops(table: dict[str, list[str]], rows: Sequence[int], side: int) -> tuple[files.PhotoFiles, tuple[str, ...]]:
    """The crops of some nodules, and their names."""
    paths = files.csv_column(table, "image", LIDC_FILE)
    names = tuple(paths[row] for row in rows)
    folder = files.data_file(LIDC_FILE, "lung nodules").parent
    return files.PhotoFiles(files.check_listed([folder / name for name in names], LIDC_FILE), side), names
