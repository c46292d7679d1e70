"""MedMNIST: small medical images in numpy archives, one array of images and one of labels per split."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mhex.data.blood import BLOOD_CLASSES
from mhex.data.folder import data_file
from mhex.data.sets import ImageSet, checked_labels
from mhex.data.table import DataFormatError, pick_rows
from mhex.errors import unknown_name

SPLITS = ("train", "val", "test")
MEDMNIST_CLASSES = {
    "pneumoniamnist": ("normal", "pneumonia"),
    "pathmnist": (
        "adipose",
        "background",
        "debris",
        "lymphocytes",
        "mucus",
        "smooth muscle",
        "normal colon mucosa",
        "cancer-associated stroma",
        "colorectal adenocarcinoma epithelium",
    ),
    "bloodmnist": BLOOD_CLASSES,
    "tissuemnist": (
        "collecting duct, connecting tubule",
        "distal convoluted tubule",
        "glomerular endothelial cells",
        "interstitial endothelial cells",
        "leukocytes",
        "podocytes",
        "proximal tubule segments",
        "thick ascending limb",
    ),
    "organamnist": (
        "bladder",
        "femur left",
        "femur right",
        "heart",
        "kidney left",
        "kidney right",
        "liver",
        "lung left",
        "lung right",
        "pancreas",
        "spleen",
    ),
}


def load_pneumonia(split: str = "train", *, limit: int | None = None) -> ImageSet:
    """Load one split of PneumoniaMNIST from ``pneumoniamnist.npz`` in the data folder; see `load_medmnist`."""
    return load_medmnist("pneumoniamnist", split, limit=limit)


def load_medmnist(name: str, split: str = "train", *, limit: int | None = None) -> ImageSet:
    """Load one split of a MedMNIST collection from ``NAME.npz`` in the data folder.

    Args:
        name: ``"pathmnist"``, ``"bloodmnist"``, ``"tissuemnist"``, ``"organamnist"`` or ``"pneumoniamnist"``.
        split: ``"train"``, ``"val"``, ``"test"`` or ``"all"``.
        limit: At most so many images, evenly spaced over the split.

    Returns:
        The images, (N, 3, H, W), grey ones with three equal channels; an image is named by its split and place.

    Raises:
        DataMissingError: The file is missing; the message says what to place where.
        DataFormatError: The file does not hold what it should.
        ArgumentError: The name or the split is unknown or the limit is not positive.
    """
    if name not in MEDMNIST_CLASSES:
        raise unknown_name("MedMNIST collection", name, MEDMNIST_CLASSES)
    classes = MEDMNIST_CLASSES[name]
    path = data_file(f"{name}.npz", f"{name} of MedMNIST v2 as published, with the arrays train_images, train_labels")
    wanted = SPLITS if split == "all" else (split,)
    pick_rows(SPLITS, split)  # refuses an unknown split with the usual words
    arrays = read_arrays(path, [f"{part}_{kind}" for part in wanted for kind in ("images", "labels")])
    images = np.concatenate([arrays[f"{part}_images"] for part in wanted])
    labels = np.concatenate([arrays[f"{part}_labels"].reshape(len(arrays[f"{part}_labels"]), -1) for part in wanted])
    if images.dtype != np.uint8 or images.ndim not in (3, 4) or len(images) != len(labels) or labels.shape[1] != 1:
        raise DataFormatError(
            f"{path.name} should hold uint8 images (N, H, W) or (N, H, W, 3) with one label each, and {images.dtype} "
            f"{images.shape} with labels {labels.shape} came: place the right file in the data folder."
        )
    names = [f"{part}-{place}" for part in wanted for place in range(len(arrays[f"{part}_images"]))]
    rows = pick_rows([split] * len(images), split, limit)
    return ImageSet(
        images=_three_channels(torch.from_numpy(images[rows])),
        labels=checked_labels(labels[rows, 0].tolist(), classes, name),
        classes=classes,
        split=split,
        names=tuple(names[row] for row in rows),
    )


def read_arrays(path: Path, names: list[str]) -> dict[str, np.ndarray[Any, Any]]:
    """Read some arrays of a numpy archive; pickled objects are never opened.

    Raises:
        DataFormatError: The file is no archive, is damaged, or lacks one of the arrays.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            missing = [name for name in names if name not in archive.files]
            if missing:
                raise DataFormatError(
                    f"{path.name} should have the arrays {names}, and lacks {missing} (it has {archive.files}): place "
                    "the right file in the data folder."
                )
            return {name: archive[name] for name in names}
    except (zipfile.BadZipFile, OSError, EOFError, ValueError) as error:
        if isinstance(error, DataFormatError):
            raise
        raise DataFormatError(f"{path.name} is not a numpy archive, or damaged ({error}): place it anew.") from error


def _three_channels(images: Tensor) -> Tensor:
    """(N, H, W) or (N, H, W, 3) to (N, 3, H, W)."""
    if images.dim() == 3:
        return images[:, None].repeat(1, 3, 1, 1)
    return images.permute(0, 3, 1, 2).contiguous()
