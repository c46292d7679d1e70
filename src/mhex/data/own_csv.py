"""A table of one's own: photos by path, or texts, with a class each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mhex._photo import Window
from mhex.data.folder import DataMissingError
from mhex.data.own_table import column, named_classes, read_table
from mhex.data.photo_files import Fit, MaskFiles, PhotoFiles, object_mask
from mhex.data.photo_sets import PhotoSet
from mhex.data.sets import TextSet
from mhex.data.table import DataFormatError, pick_rows
from mhex.errors import ArgumentError

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
