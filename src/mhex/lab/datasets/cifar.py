"""CIFAR-10 and CIFAR-100: small photos of things, used for pretraining.

Loaders read the binary version, since pickles can run any code. A pickled version that the user has is read when
`cifar10.parquet` is made, by torchvision, after the checksum of every file was compared with the published one.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from mhex.errors import require
from mhex.lab.datasets import files
from mhex.lab.datasets.archives import Archive
from mhex.lab.datasets.catalogue import register_data
from mhex.lab.datasets.sets import ImageSet
from mhex.lab.datasets.source import Originals, Source, copy, encode, write_rows

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
PIXELS = 3 * 32 * 32
SPLITS = ("train", "test")
_FILES_10 = {"train": tuple(f"data_batch_{k}.bin" for k in range(1, 6)), "test": ("test_batch.bin",)}
_FILES_100 = {"train": ("train.bin",), "test": ("test.bin",)}
FACTS: dict[str, Any] = {
    "licence": "none named",
    "citation": "A. Krizhevsky: Learning Multiple Layers of Features from Tiny Images. Technical report, University of "
    "Toronto, 2009.",
    "validation": None,
}
PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"
_URL = "https://www.cs.toronto.edu/~kriz"
BINARY_10 = Archive("cifar-10-binary.tar.gz", f"{_URL}/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530")
BINARY_100 = Archive("cifar-100-binary.tar.gz", f"{_URL}/cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8")
QUALITY = 75  # of the JPEG


def _make(originals: Originals, target: Path) -> str:
    """All photos in their published order, of the binary version or of the pickled one."""
    rows: list[tuple[str, int, files.Array]] = []  # split, label, photo (32, 32, 3)
    for split, names in _FILES_10.items():
        if originals.has(names[0]):
            folder = originals.folder(*names)
            records = np.concatenate([_read(folder / name, 1) for name in names])
            labels, photos = records[:, 0].tolist(), records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        else:
            folder = originals.folder("cifar-10-batches-py")
            try:
                published = require("torchvision.datasets").CIFAR10(folder, train=split == "train")
            except RuntimeError as error:  # a file is missing, or differs from the published one
                words = "Files of cifar-10-batches-py should have the published checksums, and at least one has not"
                raise files.wrong_file(words, originals.source.advice) from error
            labels, photos = published.targets, published.data
        files.checked_labels(labels, CIFAR10_CLASSES, "CIFAR-10")
        rows += zip([split] * len(labels), labels, photos, strict=True)

    def make(row: tuple[str, int, files.Array]) -> dict[str, object]:
        photo = Image.fromarray(np.ascontiguousarray(row[2]))
        return {"image": encode(photo, QUALITY), "label": row[1], "split": row[0]}

    write_rows(target, rows, make)
    return ""


@register_data(
    "cifar10",
    **FACTS,
    title="CIFAR-10",
    form="32 x 32 pixels, stored as JPEG",
    files="`cifar10.parquet`: image, label, split",
    source=Source(
        PAGE,
        "cifar10.parquet",
        (BINARY_10,),
        _make,
        "photos are in their published order, so that `limit` takes others; whole splits are the same",
    ),
)
def load_cifar10(split: str = "train", *, limit: int | None = None) -> ImageSet:
    """Load CIFAR-10 from ``cifar10.parquet``, splits ``"train"`` and ``"test"``; a photo is named by its row."""
    table, rows = files.read_split("cifar10.parquet", "CIFAR-10", ["image", "label"], split, limit)
    labels = files.checked_labels(table["label"], CIFAR10_CLASSES, "CIFAR-10")
    images, names = files.decode_images(table["image"]), tuple(map(str, rows))
    return ImageSet(images=images, labels=labels, classes=CIFAR10_CLASSES, split=split, names=names)


@register_data(
    "cifar10_binary",
    **FACTS,
    title="CIFAR-10",
    form="32 x 32 pixels, as published",
    files="`cifar-10-batches-bin/`: the binary version",
    source=Source(PAGE, "cifar-10-batches-bin", (BINARY_10,), copy(*_FILES_10["train"], *_FILES_10["test"])),
)
def load_cifar10_binary(split: str = "train", *, limit: int | None = None) -> ImageSet:
    """Load CIFAR-10, (N, 3, 32, 32), from ``cifar-10-batches-bin``, splits train and test, named by split and place."""
    folder = files.data_folder() / "cifar-10-batches-bin"
    numbers, images, names = _records(folder, _FILES_10, split, limit, labels=1, pickled="cifar-10-batches-py")
    labels = files.checked_labels(numbers[:, 0].tolist(), CIFAR10_CLASSES, "CIFAR-10")
    return ImageSet(images=images, labels=labels, classes=CIFAR10_CLASSES, split=split, names=names)


@register_data(
    "cifar100",
    **FACTS,
    title="CIFAR-100",
    form="32 x 32 pixels, as published",
    files="`cifar-100-binary/`: the binary version",
    source=Source(
        PAGE,
        "cifar-100-binary",
        (BINARY_100,),
        copy("train.bin", "test.bin", "fine_label_names.txt", "coarse_label_names.txt"),
    ),
    group_answers="coarse_class",
)
def load_cifar100(split: str = "train", *, limit: int | None = None) -> ImageSet:
    """Load CIFAR-100, (N, 3, 32, 32), from ``cifar-100-binary``, splits train and test; groups are coarse classes."""
    folder = files.data_folder() / "cifar-100-binary"
    labels, images, names = _records(folder, _FILES_100, split, limit, labels=2, pickled="cifar-100-python")
    fine, coarse = (_words(folder / f"{kind}_label_names.txt") for kind in ("fine", "coarse"))
    # Only the photos tell which coarse class a fine class belongs to, so all photos of a file are looked at.
    pairs = _read(folder / _FILES_100["train" if split == "all" else split][0], 2)[:, :2]
    groups: dict[int, int] = {}
    for group, place in np.unique(pairs, axis=0).tolist():
        if groups.setdefault(place, group) != group or group >= len(coarse):
            words = f"Each fine class of CIFAR-100 should belong to one of {len(coarse)} coarse ones"
            raise files.wrong_file(f"{words}, and {place} belongs to {groups[place]} and {group}", files.PUBLISHED)
    if sorted(groups) != list(range(len(fine))):
        words = f"All {len(fine)} fine classes should occur, and only {len(groups)} do"
        raise files.wrong_file(words, "place the file anew")
    return ImageSet(
        images=images,
        labels=files.checked_labels(labels[:, 1].tolist(), fine, "CIFAR-100"),
        classes=fine,
        split=split,
        names=names,
        group_of=tuple(groups[place] for place in range(len(fine))),
        group_names=coarse,
    )


def _records(
    folder: Path, layout: Mapping[str, tuple[str, ...]], split: str, limit: int | None, *, labels: int, pickled: str
) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """Labels (N, labels), images and names of one split."""
    paths = [(part, folder / name) for part in files.split_parts(SPLITS, split) for name in layout[part]]
    for _, path in paths:
        if not path.is_file():
            words, pickles = "place the binary version of the data set there, as published.", folder.parent / pickled
            if pickles.is_dir():
                words += f" {pickled} is there, and is not read, since its files are pickles, which can run any code."
            raise files.DataMissingError(f"{path.name} is not in {str(folder)!r}: {words}")
    arrays = [(part, _read(path, labels)) for part, path in paths]
    counts = {part: sum(len(array) for owner, array in arrays if owner == part) for part, _ in paths}
    names = [f"{part}-{place}" for part, count in counts.items() for place in range(count)]
    rows = files.evenly_spaced(range(len(names)), limit)
    records = torch.from_numpy(np.concatenate([array for _, array in arrays])[rows])
    images = records[:, labels:].reshape(-1, 3, 32, 32)
    return records[:, :labels], images, tuple(names[row] for row in rows)


def _read(path: Path, labels: int) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    """Records (N, labels + pixels) of a file."""
    values = np.fromfile(path, dtype=np.uint8)
    size = labels + PIXELS
    if not len(values) or len(values) % size:
        words = f"{path.name} should hold records of {size} bytes, and has {len(values)} bytes"
        raise files.wrong_file(words, files.PUBLISHED)
    return values.reshape(-1, size)


def _words(path: Path) -> tuple[str, ...]:
    if not path.is_file():
        raise files.DataMissingError(f"{path.name} is not in {str(path.parent)!r}: place it there, as published.")
    with files.refuse_damage(f"{path.name} is not a text in UTF-8", files.PUBLISHED, UnicodeDecodeError):
        return tuple(path.read_text(encoding="utf-8").split())
