"""Photos of one's own: a folder for each class."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from mhex.errors import ArgumentError, some_of
from mhex.inputs.photos import Window
from mhex.lab.datasets.imagenet import class_photos
from mhex.lab.datasets.photo_files import PHOTO_SUFFIXES, Fit, MaskFiles, PhotoFiles, PhotoSet, object_mask
from mhex.lab.datasets.sets import DataMissingError, TextSet
from mhex.lab.datasets.tables import DataFormatError, pick_rows


def read_table(path: Path) -> dict[str, list[str]]:
    """The columns of a CSV file with a heading.

    Raises:
        DataFormatError: The file has no rows, or a row of another length than the heading, or is not UTF-8.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            heading, *lines = [line for line in csv.reader(stream) if line] or [[]]
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataFormatError(f"{path.name} is not a CSV file in UTF-8 ({error}): save it so.") from error
    wrong = next((number for number, line in enumerate(lines, 2) if len(line) != len(heading)), None)
    if not lines or wrong is not None or len(set(heading)) != len(heading):
        told = (
            f"row {wrong} has other than {len(heading)} entries" if wrong else f"{len(lines)} rows and {heading} came"
        )
        raise DataFormatError(f"{path.name} should have a heading of different names and rows below, and {told}.")
    return {name.strip(): [line[place].strip() for line in lines] for place, name in enumerate(heading)}


def column(table: dict[str, list[str]], name: str, file: str) -> list[str]:
    """A column by name; a missing one is told with those that are there."""
    if name not in table:
        raise DataFormatError(
            f"{file} should have the column {name!r}, and has {list(table)}: add it, or name another."
        )
    return table[name]


def numbers(values: Sequence[str], name: str, file: str) -> list[float]:
    """A column of numbers."""
    try:
        return [float(value) for value in values]
    except ValueError as error:
        raise DataFormatError(f"The column {name!r} of {file} should hold numbers in all rows ({error}).") from error


def named_classes(values: Sequence[str], classes: Sequence[str] | None, file: str) -> tuple[Tensor, tuple[str, ...]]:
    """Labels (N,) and the names of the classes.

    Args:
        values: A class for each row, by name or number.
        classes: Names, in order; values are names or places in it. By default the different values in order, numbers
            by size.
        file: For messages.
    """
    different = sorted(set(values), key=lambda one: (not one.isdigit(), int(one) if one.isdigit() else 0, one))
    if "" in different:
        raise DataFormatError(f"Each row of {file} should have a class, and row {list(values).index('') + 2} has none.")
    if classes is None and all(one.isdigit() for one in different):
        classes = [str(place) for place in range(int(different[-1]) + 1)]
    known = {name: place for place, name in enumerate(different if classes is None else classes)}
    places = {one: int(one) for one in different if one.isdigit() and int(one) < len(known)} | known
    strange = [one for one in different if one not in places]
    if strange:
        raise ArgumentError(
            f"classes should have every class of {file}, and lacks {some_of([*map(repr, strange)], 5)}: it is "
            f"{some_of([*map(repr, known)])}."
        )
    return torch.tensor([places[one] for one in values]), tuple(known)


IMAGE_COLUMNS = ("image", "path", "file")
TEXT_COLUMN = "text"


def load_csv(
    path: str | Path,
    split: str = "all",
    *,
    limit: int | None = None,
    image: str | None = None,
    text: str | None = None,
    label: str = "label",
    mask: str | None = None,
    classes: Sequence[str] | None = None,
    side: int = 256,
    fit: Fit = "crop",
    window: Window | None = None,
) -> PhotoSet | TextSet:
    """Load a CSV file in UTF-8 with a heading and a row for each sample.

    Args:
        path: The file.
        split: A value of the column ``split``, or ``"all"``; without such a column only ``"all"``.
        limit: At most so many samples, evenly spaced.
        image: Column with paths of photos, from the folder of the file; by default ``image``, ``path`` or ``file``.
        text: Column with texts; by default ``text``, if there is no column for photos.
        label: Column with classes, by name or number.
        mask: Column with paths of masks, not black where the object is; by default ``mask``, if there is one.
        classes: Names of the classes in the order of the model; by default the different labels in order.
        side: Side of the squares that photos are made to when they are taken.
        fit: ``"crop"`` cuts out the middle square, ``"squash"`` scales both sides.
        window: Values that become black and white, for photos of more than 8 bits that do not say them themselves.

    Returns:
        Photos, decoded when they are taken, or texts. Labels do not depend on the split.

    Raises:
        DataMissingError: The file or a photo is missing.
        DataFormatError: A column is missing or the file is no CSV file.
        ArgumentError: The split is unknown, the limit is not positive, or a class is not among ``classes``.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise DataMissingError(f"There is no file {str(path)!r}: place it there, or give another path.")
    table = read_table(path)
    labels, known = named_classes(column(table, label, path.name), classes, path.name)
    if split != "all" and "split" not in table:
        raise ArgumentError(f"split should be 'all', since {path.name} has no column 'split', not {split!r}.")
    rows = pick_rows(table.get("split", ["all"] * len(labels)), split, limit)
    photos = image or (None if text else next((name for name in IMAGE_COLUMNS if name in table), None))
    if photos is None:
        if text is None and TEXT_COLUMN not in table:
            raise DataFormatError(
                f"{path.name} should have a column {' or '.join(IMAGE_COLUMNS)} with paths of photos, or a column "
                f"{TEXT_COLUMN}, and has {list(table)}: rename one, or give image= or text= its name."
            )
        if window is not None:
            raise ArgumentError(f"window is for photos, and {path.name} has texts: leave it out.")
        texts = column(table, text or TEXT_COLUMN, path.name)
        return TextSet(texts=tuple(texts[row] for row in rows), labels=labels[rows], classes=known, split=split)
    paths = _paths(path, column(table, photos, path.name), rows)
    masked = mask or ("mask" if "mask" in table else None)
    masks = _paths(path, column(table, masked, path.name), rows) if masked else None
    return PhotoSet(
        images=PhotoFiles(paths, side, fit, upright=True, window=window),
        labels=labels[rows],
        classes=known,
        split=split,
        names=tuple(one.stem for one in paths),
        masks=None if masks is None else MaskFiles(masks, side, fit, object_mask),
    )


def is_text(path: Path) -> bool:
    """Whether `load_csv` takes a file's samples for texts."""
    if not path.is_file():
        raise DataMissingError(f"There is no file {str(path)!r}: place it there, or give another path.")
    return not set(IMAGE_COLUMNS) & set(read_table(path))


def _paths(file: Path, values: Sequence[str], rows: Sequence[int]) -> list[Path]:
    found = [file.parent / values[row] for row in rows]
    missing = next((one for one in found if not one.is_file()), None)
    if missing is not None:
        raise DataMissingError(f"{file.name} names {str(missing)!r}, which is not there: place it there.")
    return found


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
