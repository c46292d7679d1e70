"""MedMNIST: small medical images in numpy archives; and the blood cells that BloodMNIST was made of, at 96 pixels."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mhex.errors import ArgumentError, unknown_name
from mhex.lab.datasets import files
from mhex.lab.datasets.catalogue import register_data
from mhex.lab.datasets.sets import ImageSet

SIZES = (28, 64, 128, 224)
SPLITS = ("train", "val", "test")
BLOOD_CLASSES = (
    *("basophil", "eosinophil", "erythroblast", "immature granulocyte", "lymphocyte", "monocyte", "neutrophil"),
    "platelet",
)
_ORGANS = (
    *("bladder", "femur left", "femur right", "heart", "kidney left", "kidney right", "liver", "lung left"),
    *("lung right", "pancreas", "spleen"),
)
MEDMNIST_TITLES = (
    *("PathMNIST", "ChestMNIST", "DermaMNIST", "OCTMNIST", "PneumoniaMNIST", "RetinaMNIST", "BreastMNIST"),
    *("BloodMNIST", "TissueMNIST", "OrganAMNIST", "OrganCMNIST", "OrganSMNIST"),
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
    **dict.fromkeys(("organamnist", "organcmnist", "organsmnist"), _ORGANS),
}
SEVERAL_CLASSES = "chestmnist"  # an image may have none or several of its classes
ORDERED_CLASSES = "retinamnist"  # grades of one disease, so that 1 is nearer to 2 than to 4


@register_data(
    "blood",
    title="PBC peripheral blood cells",
    licence="CC BY 4.0",
    citation="A. Acevedo et al.: A dataset of microscopic peripheral blood cell images for development of automatic "
    "recognition systems. Data in Brief, 2020.",
    form="the middle 200 x 200 pixels scaled to 96 x 96; own split 70/10/20",
    files="`blood.parquet`: name, image, label, split",
    answers="cell",
)
def load_blood(split: str = "train", *, limit: int | None = None) -> ImageSet:
    """Load the blood cells, (N, 3, 96, 96), from ``blood.parquet``, splits ``"train"``, ``"val"`` and ``"test"``."""
    table, _ = files.read_split("blood.parquet", "PBC peripheral blood cells", ["name", "image", "label"], split, limit)
    labels = files.checked_labels(table["label"], BLOOD_CLASSES, "the blood cells")
    images, names = files.decode_images(table["image"]), tuple(table["name"])
    return ImageSet(images=images, labels=labels, classes=BLOOD_CLASSES, split=split, names=names)


def _file(name: str, size: int) -> str:
    return f"{name}.npz" if size == SIZES[0] else f"{name}_{size}.npz"


def _facts(title: str, size: int = SIZES[0]) -> dict[str, Any]:
    """The entry of a MedMNIST collection."""
    name = title.lower()
    return {
        "title": title,
        "licence": "CC BY-NC 4.0" if name == "dermamnist" else "CC BY 4.0",
        "citation": "J. Yang et al.: MedMNIST v2, a large-scale lightweight benchmark for 2D and 3D biomedical image "
        "classification. Scientific Data, 2023.",
        "form": f"{size} x {size} pixels",
        "files": f"`{_file(name, size)}`",
        "task": {SEVERAL_CLASSES: "several classes", ORDERED_CLASSES: "ordered classes"}.get(name, "classes"),
    }


@register_data("pneumonia", **_facts("PneumoniaMNIST"))
def load_pneumonia(split: str = "train", *, limit: int | None = None) -> ImageSet:
    """Load one split of PneumoniaMNIST from ``pneumoniamnist.npz`` in the data folder; see `load_medmnist`."""
    return load_medmnist("pneumoniamnist", split, limit=limit)


def load_medmnist(name: str, split: str = "train", *, limit: int | None = None, size: int = 28) -> ImageSet:
    """Load a MedMNIST collection from ``NAME.npz`` or ``NAME_SIZE.npz``, splits train, val and test.

    The name is that of one of the twelve collections in two dimensions, such as ``"bloodmnist"``, and the size the side
    of the images in pixels: 28, 64, 128 or 224.

    Returns:
        The images, (N, 3, H, W), grey ones with three equal channels; an image is named by its split and place.
        Labels are (N,), of ``"chestmnist"`` (N, 14). Classes of ``"retinamnist"`` are grades, in order.
    """
    if name not in MEDMNIST_CLASSES:
        raise unknown_name("MedMNIST collection", name, MEDMNIST_CLASSES)
    if size not in SIZES:
        raise ArgumentError(f"size should be one of {list(SIZES)}, the sides that MedMNIST comes in, not {size}.")
    classes, several = MEDMNIST_CLASSES[name], name == SEVERAL_CLASSES
    title = f"{name} of MedMNIST v2 as published, with the arrays train_images, train_labels"
    path = files.data_file(_file(name, size), title)
    counts = _checked_counts(path, files.split_parts(SPLITS, split), len(classes) if several else 1)
    selection = files.evenly_spaced([(part, place) for part, count in counts.items() for place in range(count)], limit)
    rows = {part: [place for owner, place in selection if owner == part] for part in counts}
    images = torch.from_numpy(np.concatenate([files.array_rows(path, f"{part}_images", rows[part]) for part in rows]))
    labels = np.concatenate(
        [files.array_rows(path, f"{part}_labels", rows[part]).reshape(len(rows[part]), -1) for part in rows]
    )
    if several and not bool(np.isin(labels, (0, 1)).all()):
        words = f"Labels of {name} should be 0 and 1 for each class, and others came"
        raise files.wrong_file(words, "place it anew")
    images = images[:, None].repeat(1, 3, 1, 1) if images.dim() == 3 else images.permute(0, 3, 1, 2).contiguous()
    numbers = torch.from_numpy(labels.astype(np.int64))
    if not several:
        numbers = files.checked_labels(labels[:, 0].tolist(), classes, name)
    names = tuple(f"{part}-{place}" for part, place in selection)
    return ImageSet(images=images, labels=numbers, classes=classes, split=split, names=names)


def _checked_counts(path: Path, parts: Sequence[str], width: int) -> dict[str, int]:
    """Number of images of each split."""
    shapes = files.array_shapes(path, [f"{part}_{kind}" for part in parts for kind in ("images", "labels")])
    for part in parts:
        (images, kind), (labels, _) = shapes[f"{part}_images"], shapes[f"{part}_labels"]
        grey_or_colour = len(images) == 3 or (len(images) == 4 and images[3] == 3)
        columns = 1 if len(labels) == 1 else int(np.prod(labels[1:]))
        if kind != np.uint8 or not grey_or_colour or not labels or images[0] != labels[0] or columns != width:
            words = "one label each" if width == 1 else f"{width} labels each"
            expected = f"{path.name} should hold uint8 images (N, H, W) or (N, H, W, 3) with {words}"
            raise files.wrong_file(f"{expected}, and {kind} {images} with labels {labels} came", files.RIGHT)
    if len(sizes := {shapes[f"{part}_images"][0][1:] for part in parts}) > 1:
        raise files.wrong_file(f"Images of {path.name} should have one size, and {sorted(sizes)} came", files.RIGHT)
    return {part: shapes[f"{part}_images"][0][0] for part in parts}


for _title in MEDMNIST_TITLES:
    for _size in SIZES:
        _name = _file(_title.lower(), _size).removesuffix(".npz")
        _listed = _size == SIZES[0] and _title != "PneumoniaMNIST"
        register_data(_name, listed=_listed, **_facts(_title, _size))(
            partial(load_medmnist, _title.lower(), size=_size)
        )
