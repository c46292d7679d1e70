"""MedMNIST: small medical images in numpy archives, one array of images and one of labels per split."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mhex.errors import ArgumentError, unknown_name
from mhex.lab.datasets.blood import BLOOD_CLASSES
from mhex.lab.datasets.sets import ImageSet, checked_labels, data_file
from mhex.lab.datasets.tables import DataFormatError, array_rows, array_shapes, pick_rows

SIZES = (28, 64, 128, 224)
_ORGANS = (
    *("bladder", "femur left", "femur right", "heart", "kidney left", "kidney right", "liver", "lung left"),
    *("lung right", "pancreas", "spleen"),
)
MEDMNIST_CLASSES: dict[str, tuple[str, ...]] = {
    "pathmnist": (
        *("adipose", "background", "debris", "lymphocytes", "mucus", "smooth muscle", "normal colon mucosa"),
        *("cancer-associated stroma", "colorectal adenocarcinoma epithelium"),
    ),
    "chestmnist": (
        *("atelectasis", "cardiomegaly", "effusion", "infiltration", "mass", "nodule", "pneumonia", "pneumothorax"),
        *("consolidation", "edema", "emphysema", "fibrosis", "pleural", "hernia"),
    ),
    "dermamnist": (
        *("actinic keratoses and intraepithelial carcinoma", "basal cell carcinoma", "benign keratosis-like lesions"),
        *("dermatofibroma", "melanoma", "melanocytic nevi", "vascular lesions"),
    ),
    "octmnist": ("choroidal neovascularization", "diabetic macular edema", "drusen", "normal"),
    "pneumoniamnist": ("normal", "pneumonia"),
    "retinamnist": ("0", "1", "2", "3", "4"),
    "breastmnist": ("malignant", "normal, benign"),
    "bloodmnist": BLOOD_CLASSES,
    "tissuemnist": (
        *("collecting duct, connecting tubule", "distal convoluted tubule", "glomerular endothelial cells"),
        *("interstitial endothelial cells", "leukocytes", "podocytes", "proximal tubule segments"),
        "thick ascending limb",
    ),
    "organamnist": _ORGANS,
    "organcmnist": _ORGANS,
    "organsmnist": _ORGANS,
}
SEVERAL_CLASSES = ("chestmnist",)  # an image may have none or several of its classes
ORDERED_CLASSES = ("retinamnist",)  # grades of one disease, so that 1 is nearer to 2 than to 4
TITLES = {
    "pathmnist": "PathMNIST",
    "chestmnist": "ChestMNIST",
    "dermamnist": "DermaMNIST",
    "octmnist": "OCTMNIST",
    "pneumoniamnist": "PneumoniaMNIST",
    "retinamnist": "RetinaMNIST",
    "breastmnist": "BreastMNIST",
    "bloodmnist": "BloodMNIST",
    "tissuemnist": "TissueMNIST",
    "organamnist": "OrganAMNIST",
    "organcmnist": "OrganCMNIST",
    "organsmnist": "OrganSMNIST",
}


SPLITS = ("train", "val", "test")


def load_pneumonia(split: str = "train", *, limit: int | None = None) -> ImageSet:
    """Load one split of PneumoniaMNIST from ``pneumoniamnist.npz`` in the data folder; see `load_medmnist`."""
    return load_medmnist("pneumoniamnist", split, limit=limit)


def load_medmnist(name: str, split: str = "train", *, limit: int | None = None, size: int = 28) -> ImageSet:
    """Load one split of a MedMNIST collection from ``NAME.npz`` or ``NAME_SIZE.npz`` in the data folder.

    Args:
        name: One of the twelve collections in two dimensions, such as ``"bloodmnist"``.
        split: ``"train"``, ``"val"``, ``"test"`` or ``"all"``.
        limit: At most so many images, evenly spaced over the split; the others are skipped while reading.
        size: Side of the images in pixels: 28, 64, 128 or 224.

    Returns:
        The images, (N, 3, H, W), grey ones with three equal channels; an image is named by its split and place.
        Labels are (N,), of ``"chestmnist"`` (N, 14). Classes of ``"retinamnist"`` are grades, in order.

    Raises:
        DataMissingError: The file is missing; the message says what to place where.
        DataFormatError: The file does not hold what it should.
        ArgumentError: The name, the size or the split is unknown or the limit is not positive.
    """
    if name not in MEDMNIST_CLASSES:
        raise unknown_name("MedMNIST collection", name, MEDMNIST_CLASSES)
    if size not in SIZES:
        raise ArgumentError(f"size should be one of {list(SIZES)}, the sides that MedMNIST comes in, not {size}.")
    classes = MEDMNIST_CLASSES[name]
    file = f"{name}.npz" if size == SIZES[0] else f"{name}_{size}.npz"
    path = data_file(file, f"{name} of MedMNIST v2 as published, with the arrays train_images, train_labels")
    pick_rows(SPLITS, split)  # refuses an unknown split with the usual words
    wanted = SPLITS if split == "all" else (split,)
    counts = _checked_counts(path, wanted, len(classes) if name in SEVERAL_CLASSES else 1)
    origins = [(part, place) for part in wanted for place in range(counts[part])]
    chosen = [origins[row] for row in pick_rows([split] * len(origins), split, limit)]
    rows = {part: [place for one, place in chosen if one == part] for part in wanted}
    images = np.concatenate([array_rows(path, f"{part}_images", rows[part]) for part in wanted])
    labels = np.concatenate(
        [array_rows(path, f"{part}_labels", rows[part]).reshape(len(rows[part]), -1) for part in wanted]
    )
    return ImageSet(
        images=_three_channels(torch.from_numpy(images)),
        labels=_several(labels, name)
        if name in SEVERAL_CLASSES
        else checked_labels(labels[:, 0].tolist(), classes, name),
        classes=classes,
        split=split,
        names=tuple(f"{part}-{place}" for part, place in chosen),
    )


def _checked_counts(path: Path, wanted: tuple[str, ...], width: int) -> dict[str, int]:
    """Number of images of each split."""
    shapes = array_shapes(path, [f"{part}_{kind}" for part in wanted for kind in ("images", "labels")])
    for part in wanted:
        (images, kind), (labels, _) = shapes[f"{part}_images"], shapes[f"{part}_labels"]
        grey_or_colour = len(images) == 3 or (len(images) == 4 and images[3] == 3)
        columns = 1 if len(labels) == 1 else int(np.prod(labels[1:]))
        if kind != np.uint8 or not grey_or_colour or not labels or images[0] != labels[0] or columns != width:
            told = "one label each" if width == 1 else f"{width} labels each"
            raise DataFormatError(
                f"{path.name} should hold uint8 images (N, H, W) or (N, H, W, 3) with {told}, and {kind} {images} with "
                f"labels {labels} came: place the right file in the data folder."
            )
    return {part: shapes[f"{part}_images"][0][0] for part in wanted}


def _several(labels: np.ndarray[tuple[int, ...], np.dtype[np.int64]], name: str) -> Tensor:
    found = torch.from_numpy(labels.astype(np.int64))
    if not bool(((found == 0) | (found == 1)).all()):
        raise DataFormatError(f"Labels of {name} should be 0 and 1 for each class, and others came: place it anew.")
    return found


def _three_channels(images: Tensor) -> Tensor:
    """(N, H, W) or (N, H, W, 3) to (N, 3, H, W)."""
    if images.dim() == 3:
        return images[:, None].repeat(1, 3, 1, 1)
    return images.permute(0, 3, 1, 2).contiguous()
