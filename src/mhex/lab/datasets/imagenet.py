"""ImageNet photos that show things of several classes, by annotations beside the validation photos."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mhex._files import read_json
from mhex.errors import ArgumentError, require
from mhex.lab.datasets.photo_files import PHOTO_SUFFIXES, PhotoFiles, PhotoSet, TwoClassSet
from mhex.lab.datasets.sets import DataMissingError, data_file, data_folder
from mhex.lab.datasets.tables import DataFormatError, pick_rows

Embed = Callable[[Sequence[str]], Tensor]


def same_object(names: Sequence[str], threshold: float = 0.75, embed: Embed | None = None) -> Tensor:
    """Compare the names of classes.

    Two classes are the same object if the cosine similarity of a name of one to a name of the other is above the
    threshold. Names are compared by their groups of three letters unless vectors are given: that finds sunglass and
    sunglasses, and not screen and monitor, for which the vectors of a language model are needed.

    Args:
        names: Of C classes, several names of one with commas between.
        threshold: In 0..1.
        embed: From M names to vectors (M, D).

    Returns:
        (C, C), bool; a class is the same as itself.

    Raises:
        ArgumentError: The threshold is not in 0..1, or ``embed`` gives other than a vector for each name.
    """
    if not 0 <= threshold <= 1:
        raise ArgumentError(f"threshold should lie in 0..1, not be {threshold}.")
    pairs = [(place, one.strip()) for place, several in enumerate(names) for one in several.split(",") if one.strip()]
    single = [name for _, name in pairs]
    vectors = (letters if embed is None else embed)(single)
    if vectors.dim() != 2 or len(vectors) != len(single):
        raise ArgumentError(f"embed should give a vector for each of {len(single)} names, not {tuple(vectors.shape)}.")
    unit = torch.nn.functional.normalize(vectors.float(), dim=1)
    alike = unit @ unit.T > threshold
    owner = torch.nn.functional.one_hot(torch.tensor([place for place, _ in pairs]), len(names)).float()
    return (owner.T @ alike.float() @ owner > 0) | torch.eye(len(names), dtype=torch.bool)


def letters(names: Sequence[str]) -> Tensor:
    """How often each group of three letters is in each name, (M, D); names begin and end with a space."""
    groups = [[f" {name.lower()} "[k : k + 3] for k in range(len(name))] for name in names]
    places = {group: place for place, group in enumerate(dict.fromkeys(one for row in groups for one in row))}
    counts = torch.zeros(len(names), len(places))
    for row, own in enumerate(groups):
        for group in own:
            counts[row, places[group]] += 1
    return counts


IMAGENET_FOLDER = "imagenet"
SPLITS = ("train", "val")


@cache
def imagenet_synsets() -> dict[str, str]:
    """The 1000 classes of ImageNet-1k in their order, synset to names: ``{"n01440764": "tench, Tinca tinca", ...}``."""
    known = require("timm.data").ImageNetInfo("imagenet-1k")
    return {name: known.label_name_to_description(name) for name in known.label_names()}


def class_photos(root: Path, classes: list[str]) -> list[tuple[Path, int]]:
    """The photos in ``root/CLASS/`` with the places of their classes, in the order of classes and names."""
    return [
        (path, place)
        for place, name in enumerate(classes)
        for path in sorted((root / name).glob("*"))
        if path.suffix.lower() in PHOTO_SUFFIXES
    ]


def load_imagenet(split: str = "train", *, limit: int | None = None, side: int = 256) -> PhotoSet:
    """List one split of ImageNet-1k in the data folder, laid out as ``imagenet/train/SYNSET/*.JPEG``.

    Args:
        split: ``"train"`` or ``"val"``.
        limit: At most so many photos, evenly spaced over the split.
        side: Side of the squares that photos are cut to when they are taken.

    Returns:
        The photos with their labels; classes are the synsets of ``train`` in alphabetical order.

    Raises:
        DataMissingError: A folder is missing or empty; the message says what to place where.
        ArgumentError: The split is unknown or the limit is not positive.
    """
    pick_rows(SPLITS, split)
    root = data_folder() / IMAGENET_FOLDER
    classes = sorted(entry.name for entry in (root / "train").glob("*/")) if (root / "train").is_dir() else []
    wanted = SPLITS if split == "all" else (split,)
    files = [found for part in wanted for found in class_photos(root / part, classes)]
    if not files:
        raise DataMissingError(
            f"The photos of ImageNet-1k are not in {str(root)!r}: place them there as {'/'.join((wanted[0], 'SYNSET'))}"
            "/*.JPEG, with the folders train and val, 1000 synsets each."
        )
    rows = pick_rows([split] * len(files), split, limit)
    return PhotoSet(
        images=PhotoFiles([files[row][0] for row in rows], side),
        labels=torch.tensor([files[row][1] for row in rows]),
        classes=tuple(classes),
        split=split,
        names=tuple(files[row][0].stem for row in rows),
    )


REAL_FILE = "real.json"
VAL_NAME = "ILSVRC2012_val_{:08d}"


def load_imagenet_multi(
    split: str = "val",
    *,
    limit: int | None = None,
    side: int = 256,
    file: str = REAL_FILE,
    threshold: float = 0.75,
    embed: Embed | None = None,
    single: bool = False,
) -> TwoClassSet:
    """List the validation photos of ImageNet-1k that show two different things.

    Annotations are ``imagenet/real.json`` as published with "Are we done with ImageNet?" (a list of class numbers for
    each of the 50,000 validation photos, in the order of their names), or another file of the same folder that maps
    names of photos to lists of class numbers or synsets.

    Args:
        split: ``"val"`` or ``"all"``, which are the same.
        limit: At most so many photos, evenly spaced.
        side: Side of the squares that photos are cut to when they are taken.
        file: Name of the annotations in ``imagenet``.
        threshold: Classes whose names are more alike than this count as the same object; see `same_object`.
        embed: From names to vectors, for `same_object`; by default names are compared letter by letter.
        single: Whether to keep photos of one object, too; their second class is -1.

    Returns:
        The photos with their first class as label and, in ``others``, the next one that is another object.

    Raises:
        DataMissingError: Annotations or photos are missing; the message says what to place where.
        DataFormatError: The annotations are not what they should be.
        ArgumentError: The split is unknown or the limit is not positive.
    """
    pick_rows(["val"], split)
    what = "labels of ImageNet photos with several classes: for each photo a list of class numbers"
    listed = _annotations(data_file(f"{IMAGENET_FOLDER}/{file}", what))
    folder = data_folder() / IMAGENET_FOLDER / "val"
    files = {path.stem: path for path in folder.glob("**/*") if path.suffix.lower() in PHOTO_SUFFIXES}
    names = list(imagenet_synsets().values())
    several = sorted({one for classes in listed.values() if len(classes) > 1 for one in classes})
    place_of = {one: place for place, one in enumerate(several)}
    same = same_object([names[one] for one in several], threshold, embed).tolist() if several else []
    found = []
    for name, classes in listed.items():
        other = next((one for one in classes[1:] if not same[place_of[classes[0]]][place_of[one]]), -1)
        if classes and name in files and (single or other >= 0):
            found.append((files[name], classes, other))
    if not found:
        raise DataMissingError(
            f"None of the {len(listed)} photos of {file} that have two classes is in {str(folder)!r}: place the "
            "validation photos of ImageNet-1k there, as val/SYNSET/ILSVRC2012_val_00000001.JPEG or without synsets."
        )
    chosen = [found[row] for row in pick_rows(["val"] * len(found), split, limit)]
    return TwoClassSet(
        images=PhotoFiles([path for path, _, _ in chosen], side),
        labels=torch.tensor([classes[0] for _, classes, _ in chosen]),
        classes=tuple(imagenet_synsets()),
        split=split,
        names=tuple(path.stem for path, _, _ in chosen),
        others=torch.tensor([other for _, _, other in chosen]),
        present=tuple(classes for _, classes, _ in chosen),
    )


def _annotations(path: Path) -> dict[str, tuple[int, ...]]:
    """Classes of each photo, by its name without a suffix."""
    try:
        read = read_json(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataFormatError(f"{path.name} is not JSON, or damaged ({error}): place it anew.") from error
    if isinstance(read, list):
        read = {VAL_NAME.format(place + 1): classes for place, classes in enumerate(read)}
    if not isinstance(read, dict) or not all(isinstance(classes, list) for classes in read.values()):
        raise DataFormatError(
            f"{path.name} should hold a list of lists of classes, or such a list for each name of a photo: place the "
            "right file in the data folder."
        )
    order = {synset: place for place, synset in enumerate(imagenet_synsets())}
    return {Path(name).stem: _places(classes, order, path.name) for name, classes in read.items()}


def _places(classes: Sequence[Any], order: Mapping[str, int], file: str) -> tuple[int, ...]:
    places: list[Any] = [order.get(one, one) if isinstance(one, str) else one for one in classes]
    wrong = [one for one in places if isinstance(one, bool) or not isinstance(one, int) or not 0 <= one < len(order)]
    if wrong:
        raise DataFormatError(f"Classes in {file} should be 0..999 or synsets of ImageNet-1k, and {wrong[0]!r} came.")
    return tuple(dict.fromkeys(places))
