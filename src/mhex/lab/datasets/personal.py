"""Data of the user: photos in a folder for each class, and photos or texts in a CSV file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mhex.errors import ArgumentError, some_of
from mhex.inputs.photos import Window
from mhex.lab.datasets import files
from mhex.lab.datasets.sets import PhotoSet, TextSet

IMAGE_COLUMNS = ("image", "path", "file")
TEXT_COLUMN = "text"
SPLITS = ("train", "val", "test")
_LONGEST = 6  # digits of the number of a class; longer ones are names, such as those of patients


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
    fit: files.Fit = "crop",
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
        classes: Names of the classes in the order of the model; by default the different labels in order, and items
            go to a model by name where it has classes of all these names.
        side: Side of the squares that photos are made to when they are taken.
        fit: ``"crop"`` cuts out the middle square, ``"squash"`` scales both sides.
        window: Values that become black and white, for photos of more than 8 bits that do not say them themselves.

    Returns:
        Photos, decoded when they are taken, or texts. Labels do not depend on the split.
    """
    path = _existing(Path(path).expanduser())
    table = files.read_csv(path)
    labels, names = named_classes(files.csv_column(table, label, path.name), classes, path.name)
    if split != "all" and "split" not in table:
        raise ArgumentError(f"split should be 'all', since {path.name} has no column 'split', not {split!r}.")
    rows = files.pick_rows(table.get("split", ["all"] * len(labels)), split, limit)
    facts: Any = {"labels": labels[rows], "classes": names, "split": split}
    facts["by_name"] = classes is None and not _are_numbers(names)
    photos = image or (None if text else next((name for name in IMAGE_COLUMNS if name in table), None))
    if photos is None:
        if text is None and TEXT_COLUMN not in table:
            raise files.DataFormatError(
                f"{path.name} should have a column {' or '.join(IMAGE_COLUMNS)} with paths of photos, or a column "
                f"{TEXT_COLUMN}, and has {list(table)}: rename one, or give image= or text= its name."
            )
        if window is not None:
            raise ArgumentError(f"window is for photos, and {path.name} has texts: leave it out.")
        texts = files.csv_column(table, text or TEXT_COLUMN, path.name)
        return TextSet(texts=tuple(texts[row] for row in rows), **facts)

    def paths_in(column: str) -> Sequence[Path]:
        values = files.csv_column(table, column, path.name)
        return files.check_listed([path.parent / values[row] for row in rows], path.name)

    mask = mask or ("mask" if "mask" in table else None)
    paths, masks = paths_in(photos), None if mask is None else paths_in(mask)
    return _photo_set(paths, masks, side, fit, window, **facts)


def _photo_set(
    paths: Sequence[Path], masks: Sequence[Path] | None, side: int, fit: files.Fit, window: Window | None, **facts: Any
) -> PhotoSet:
    """Photos in files, with masks in files where there are any, and the other fields of the set."""
    images = files.PhotoFiles(paths, side, fit, upright=True, window=window)
    mask_files = None if masks is None else files.MaskFiles(masks, side, fit, files.object_mask)
    return PhotoSet(images=images, names=images.names, masks=mask_files, **facts)


def is_text(path: Path) -> bool:
    """Whether `load_csv` takes the samples of a file for texts."""
    return not set(IMAGE_COLUMNS) & set(files.read_csv(_existing(path)))


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise files.DataMissingError(f"There is no file {str(path)!r}: place it there, or give another path.")
    return path


def named_classes(values: Sequence[str], classes: Sequence[str] | None, file: str) -> tuple[Tensor, tuple[str, ...]]:
    """Labels (N,) and the names of the classes; values are names, or places in ``classes`` if these are known."""
    numbers = {name: int(name) for name in set(values) if name.isdecimal() and len(name) <= _LONGEST}
    different = sorted(set(values), key=lambda name: (name not in numbers, numbers.get(name, 0), name))
    if "" in different:
        empty = list(values).index("") + 2
        raise files.DataFormatError(f"Each row of {file} should have a class, and row {empty} has none.")
    if classes is None and len(numbers) == len(different):
        classes = [str(place) for place in range(numbers[different[-1]] + 1)]
    names = {name: place for place, name in enumerate(different if classes is None else classes)}
    places = {name: place for name, place in numbers.items() if place < len(names)} | names
    if strange := [repr(name) for name in different if name not in places]:
        raise ArgumentError(
            f"classes should have every class of {file}, and lacks {some_of(strange, 5)}: it is "
            f"{some_of([*map(repr, names)])}."
        )
    return torch.tensor([places[value] for value in values]), tuple(names)


def _are_numbers(classes: Sequence[str]) -> bool:
    """Whether the classes have no names but their places, 0, 1, 2..."""
    return all(name == str(place) for place, name in enumerate(classes))


def load_folder(
    folder: str | Path,
    split: str = "all",
    *,
    limit: int | None = None,
    masks: str | Path | None = None,
    side: int = 256,
    fit: files.Fit = "crop",
    window: Window | None = None,
) -> PhotoSet:
    """List photos in ``FOLDER/CLASS/*.jpg``, or in ``FOLDER/SPLIT/CLASS/*.jpg`` with splits train, val and test.

    Args:
        folder: The folder.
        split: ``"train"``, ``"val"``, ``"test"``, or ``"all"`` for every photo; without splits only ``"all"``.
        limit: At most so many photos, evenly spaced.
        masks: Folder laid out as the other, with a PNG of the same name for each photo, not black where the object is.
        side: As for `load_csv`.
        fit: As for `load_csv`.
        window: As for `load_csv`.

    Returns:
        The photos, decoded when they are taken; classes are the names of the folders in alphabetical order. Items go to
        a model by name where it has classes of all these names, and with a warning by number where it has others.
    """
    root = Path(folder).expanduser()
    parts = [part for part in SPLITS if (root / part).is_dir() and any((root / part).glob("*/"))]
    if split != "all" and split not in parts and root.is_dir():
        raise ArgumentError(
            f"split should be one of {[*parts, 'all']}, the folders of {str(root)!r}, not {split!r}; make a folder "
            f"{split!r} there with a folder for each class."
        )
    roots = [root / part for part in parts] or [root]
    classes = sorted({entry.name for place in roots for entry in place.glob("*/") if not entry.name.startswith(".")})
    places = roots if split == "all" else [root / split]
    pairs = [pair for place in places for pair in files.class_photos(place, classes)]
    if not pairs:
        flat = root.is_dir() and any(path.suffix.lower() in files.PHOTO_SUFFIXES for path in root.iterdir())
        raise files.DataMissingError(
            f"{'None of the photos is in a folder of its class' if flat else 'There are no photos'} in {str(root)!r}: "
            "place them with a folder for each class, as CLASS/photo.jpg, or with splits, as train/CLASS/photo.jpg and "
            "test/CLASS/photo.jpg. A list of photos without classes serves mhex.evaluate and mhex.recommend too."
        )
    paths, labels = zip(*files.evenly_spaced(pairs, limit), strict=True)
    mirrored = None
    if masks is not None:
        mirrored = [(Path(masks).expanduser() / path.relative_to(root)).with_suffix(".png") for path in paths]
        if missing := [str(path) for path in mirrored if not path.is_file()]:
            words = "place one there for each photo, with its name."
            raise files.DataMissingError(f"There is no mask {missing[0]!r}: {words}")
    facts = {"labels": torch.tensor(labels), "classes": tuple(classes), "split": split}
    facts["by_name"] = not _are_numbers(classes)
    return _photo_set(paths, mirrored, side, fit, window, **facts)
