"""ImageNet-1k, its photos of several classes, and a few of its photos in one file.

torchvision's ImageNet wants the archives as published and writes a pickle beside them; folders of photos are read here.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mhex._files import read_json
from mhex.errors import ArgumentError, require
from mhex.lab.datasets import files
from mhex.lab.datasets.archives import Archive
from mhex.lab.datasets.catalogue import register_data
from mhex.lab.datasets.sets import ImageSet, PhotoSet, TwoClassSet
from mhex.lab.datasets.source import Originals, Source, encode, read_photo, write_rows

Embed = Callable[[Sequence[str]], Tensor]
IMAGENET_FOLDER = "imagenet"
PHOTOS_FILE = "photos.parquet"
REAL_FILE = "real.json"
VAL_NAME = "ILSVRC2012_val_{:08d}"
SPLITS = ("train", "val")
LICENCE = "research use, see image-net.org"
CITATION = (
    "O. Russakovsky et al.: ImageNet Large Scale Visual Recognition Challenge. International Journal of Computer "
    "Vision, 2015."
)


@cache
def imagenet_synsets() -> dict[str, str]:
    """The 1000 classes of ImageNet-1k in their order, synset to names: ``{"n01440764": "tench, Tinca tinca", ...}``."""
    info = require("timm.data").ImageNetInfo("imagenet-1k")
    return {name: info.label_name_to_description(name) for name in info.label_names()}


def synset_places() -> dict[str, int]:
    """The number of each synset of ImageNet-1k."""
    return {synset: place for place, synset in enumerate(imagenet_synsets())}


@register_data(
    "imagenet",
    title="ImageNet-1k",
    licence=LICENCE,
    citation=CITATION,
    form="the middle square of each photo at 256 x 256 pixels; judged on the split val",
    files="`imagenet/train/SYNSET/*.JPEG`, `imagenet/val/SYNSET/*.JPEG`",
    source=Source("https://image-net.org", f"{IMAGENET_FOLDER}/val"),
    validation=None,
    test="val",
)
def load_imagenet(split: str = "train", *, limit: int | None = None, side: int = 256) -> PhotoSet:
    """List ImageNet-1k, splits train and val, laid out as ``imagenet/train/SYNSET/*.JPEG`` in the data folder.

    Photos are cut to squares of ``side`` pixels when they are taken; classes are the synsets of ``train`` in order.
    """
    parts = files.split_parts(SPLITS, split)
    root = files.data_folder() / IMAGENET_FOLDER
    classes = sorted(entry.name for entry in (root / "train").glob("*/")) if (root / "train").is_dir() else []
    photos = [file for part in parts for file in files.class_photos(root / part, classes)]
    if not photos:
        raise files.DataMissingError(
            f"The photos of ImageNet-1k are not in {str(root)!r}: place them there as {parts[0]}/SYNSET/*.JPEG, with "
            "the folders train and val, 1000 synsets each."
        )
    paths, places = zip(*files.evenly_spaced(photos, limit), strict=True)
    images, labels = files.PhotoFiles(paths, side), torch.tensor(places)
    return PhotoSet(images=images, labels=labels, classes=tuple(classes), split=split, names=images.names)


def _make_photos(originals: Originals, target: Path) -> str:
    """The photos of the list, cut to squares."""

    def make(row: tuple[str, str, Path]) -> dict[str, object]:
        return {"name": row[0], "image": encode(files.fitted(read_photo(row[2]), 256, "crop"), quality=90)}

    write_rows(target, originals.by_list("photos", originals.photos()), make)
    return ""


@register_data(
    "photos",
    title="Photos of 106 ImageNet classes",
    licence=LICENCE,
    citation=CITATION,
    form="one photo each, the middle square at 256 x 256 pixels",
    files="`photos.parquet`: name, image",
    source=Source(
        "https://github.com/EliSchwartz/imagenet-sample-images",
        PHOTOS_FILE,
        (Archive("imagenet-sample-images-master.zip"),),
        _make_photos,
        "names are those of this collection, which was not compared photo by photo",
    ),
    train=None,
    validation=None,
)
def load_photos(split: str = "test", *, limit: int | None = None) -> ImageSet:
    """Load the photos of ``photos.parquet``, (N, 3, 256, 256), labelled 0..999; splits test and all are the same."""
    title = "photos of ImageNet classes with the columns name, a synset and a word, and image"
    table = files.read_columns(files.data_file(PHOTOS_FILE, title), ["name", "image"])
    rows = files.pick_rows(["test"] * len(table["name"]), split, limit)
    names = [table["name"][row] for row in rows]
    places = synset_places()
    for name in names:
        if name.split("_")[0] not in places:
            words = f"Names in {PHOTOS_FILE} should begin with a synset of ImageNet-1k, such as n01443537_goldfish"
            raise files.wrong_file(f"{words}, and {name!r} came")
    images = files.decode_images([table["image"][row] for row in rows])
    labels = torch.tensor([places[name.split("_")[0]] for name in names])
    return ImageSet(images=images, labels=labels, classes=tuple(places), split=split, names=tuple(names))


@register_data(
    "imagenet_multi",
    title="ImageNet-1k, photos of several classes",
    licence="labels Apache-2.0, photos research use",
    citation="L. Beyer, O. J. Hénaff, A. Kolesnikov, X. Zhai, A. van den Oord: Are we done with ImageNet? arXiv "
    "2006.07159, 2020.",
    form="validation photos with two classes that are different objects",
    files="`imagenet/real.json` beside `imagenet/val/`; or `file=` another, from names of photos to classes",
    source=Source("https://github.com/google-research/reassessed-imagenet", f"{IMAGENET_FOLDER}/{REAL_FILE}"),
    train=None,
    validation=None,
    test="val",
    judged="two classes",
)
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

    Args:
        split: ``"val"`` or ``"all"``, which are the same.
        limit: As for all loaders.
        side: Side of the squares that photos are cut to when they are taken.
        file: Annotations in ``imagenet``: ``real.json`` as published with "Are we done with ImageNet?", a list of class
            numbers for each validation photo, or a file from names of photos to lists of class numbers or synsets.
        threshold: Classes whose names are more alike than this count as the same object; see `same_object`.
        embed: From names to vectors, for `same_object`; by default names are compared letter by letter.
        single: Whether to keep photos of one object, too; their second class is -1.

    Returns:
        The photos with their first class as label and, in ``second_labels``, the next one that is another object.
    """
    files.split_parts(["val"], split)
    title = "labels of ImageNet photos with several classes: for each photo a list of class numbers"
    listed = _annotations(files.data_file(f"{IMAGENET_FOLDER}/{file}", title))
    folder = files.data_folder() / IMAGENET_FOLDER / "val"
    paths = {path.stem: path for path in folder.glob("**/*") if path.suffix.lower() in files.PHOTO_SUFFIXES}
    names = list(imagenet_synsets().values())
    several = sorted({number for numbers in listed.values() if len(numbers) > 1 for number in numbers})
    place_of = {number: place for place, number in enumerate(several)}
    alike = same_object([names[number] for number in several], threshold, embed).tolist() if several else []
    photos = []
    for name, numbers in listed.items():
        second = next((number for number in numbers[1:] if not alike[place_of[numbers[0]]][place_of[number]]), -1)
        if numbers and name in paths and (single or second >= 0):
            photos.append((paths[name], numbers, second))
    if not photos:
        raise files.DataMissingError(
            f"None of the {len(listed)} photos of {file} that have two classes is in {str(folder)!r}: place the "
            "validation photos of ImageNet-1k there, as val/SYNSET/ILSVRC2012_val_00000001.JPEG or without synsets."
        )
    selection, present, seconds = zip(*files.evenly_spaced(photos, limit), strict=True)
    images = files.PhotoFiles(selection, side)
    return TwoClassSet(
        images=images,
        labels=torch.tensor([numbers[0] for numbers in present]),
        classes=tuple(imagenet_synsets()),
        split=split,
        names=images.names,
        second_labels=torch.tensor(seconds),
        present=present,
    )


def _annotations(path: Path) -> dict[str, tuple[int, ...]]:
    """Classes of each photo, by its name without a suffix."""
    with files.refuse_damage(f"{path.name} is not JSON, or damaged", "place it anew", ValueError):
        content = read_json(path.read_text(encoding="utf-8"))
    if isinstance(content, list):
        content = {VAL_NAME.format(place): classes for place, classes in enumerate(content, 1)}
    if not isinstance(content, dict) or not all(isinstance(classes, list) for classes in content.values()):
        words = f"{path.name} should hold a list of lists of classes, or such a list for each name of a photo"
        raise files.wrong_file(words, files.RIGHT)
    order = synset_places()
    annotations: dict[str, tuple[int, ...]] = {}
    for name, classes in content.items():
        numbers: list[Any] = [order.get(value, value) if isinstance(value, str) else value for value in classes]
        for number in numbers:
            if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < len(order):
                words = f"Classes in {path.name} should be 0..999 or synsets of ImageNet-1k"
                raise files.DataFormatError(f"{words}, and {number!r} came.")
        annotations[Path(name).stem] = tuple(dict.fromkeys(numbers))
    return annotations


def same_object(names: Sequence[str], threshold: float = 0.75, embed: Embed | None = None) -> Tensor:
    """Tell which classes are the same object: the cosine of a name of one and a name of the other is above a threshold.

    Args:
        names: Of C classes, several names of one with commas between.
        threshold: In 0..1.
        embed: From M names to vectors (M, D); by default counts of groups of three letters, which find sunglass and
            sunglasses, and not screen and monitor: these need the vectors of a language model.

    Returns:
        (C, C), bool; a class is the same as itself.
    """
    if not 0 <= threshold <= 1:
        raise ArgumentError(f"threshold should lie in 0..1, not be {threshold}.")
    pairs = [
        (place, name.strip()) for place, aliases in enumerate(names) for name in aliases.split(",") if name.strip()
    ]
    single = [name for _, name in pairs]
    vectors = (_letter_groups if embed is None else embed)(single)
    if vectors.dim() != 2 or len(vectors) != len(single):
        raise ArgumentError(f"embed should give a vector for each of {len(single)} names, not {tuple(vectors.shape)}.")
    unit = torch.nn.functional.normalize(vectors.float(), dim=1)
    alike = unit @ unit.T > threshold
    owner = torch.nn.functional.one_hot(torch.tensor([place for place, _ in pairs]), len(names)).float()
    return (owner.T @ alike.float() @ owner > 0) | torch.eye(len(names), dtype=torch.bool)


def _letter_groups(names: Sequence[str]) -> Tensor:
    """How often each group of three letters is in each name, (M, D); names begin and end with a space."""
    groups = [Counter(f" {name.lower()} "[k : k + 3] for k in range(len(name))) for name in names]
    columns = list(dict.fromkeys(chain.from_iterable(groups)))
    return torch.tensor([[float(counts[group]) for group in columns] for counts in groups])
