"""MedMNIST: small medical images in numpy archives; and the blood cells that BloodMNIST was made of, at 96 pixels."""

import shutil
import zlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from mhex.errors import ArgumentError, unknown_name
from mhex.lab.datasets import files
from mhex.lab.datasets.archives import Archive
from mhex.lab.datasets.catalogue import register_data
from mhex.lab.datasets.sets import ImageSet
from mhex.lab.datasets.source import Originals, Source, encode, read_photo, split_list, write_rows

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
MEDMNIST_PAGE = "https://zenodo.org/records/10519652"
# Published checksums of the collections at 28 pixels.
MEDMNIST_MD5 = {
    "pathmnist": "a8b06965200029087d5bd730944a56c1",
    "chestmnist": "02c8a6516a18b556561a56cbdd36c4a8",
    "dermamnist": "0744692d530f8e62ec473284d019b0c7",
    "octmnist": "c68d92d5b585d8d81f7112f81e2d0842",
    "pneumoniamnist": "28209eda62fecd6e6a2d98b1501bb15f",
    "retinamnist": "bd4c0672f1bba3e3a89f0e4e876791e4",
    "breastmnist": "750601b1f35ba3300ea97c75c52ff8f6",
    "bloodmnist": "7053d0359d879ad8a5505303e11de1dc",
    "tissuemnist": "ebe78ee8b05294063de985d821c1c34b",
    "organamnist": "68e3f8846a6bd62f0c9bf841c0d9eacc",
    "organcmnist": "b9ceb9546e10131b32923c5bbeaea2b1",
    "organsmnist": "9ab87b696fb54e2a387ebe992d6ed5f1",
}
BLOOD_FILE, BLOOD_QUALITY = "blood.parquet", 85
# The folders of the original photos, in the order of the classes.
BLOOD_FOLDERS = tuple("ig" if name == "immature granulocyte" else name for name in BLOOD_CLASSES)
SEVERAL_CLASSES = "chestmnist"  # an image may have none or several of its classes
ORDERED_CLASSES = "retinamnist"  # grades of one disease, so that 1 is nearer to 2 than to 4


def _make_blood(originals: Originals, target: Path) -> str:
    """The photos of the list: the middle 200 x 200 pixels, scaled."""
    photos = originals.photos(lambda path: path.parent.name in BLOOD_FOLDERS)

    def make(row: tuple[str, str, Path]) -> dict[str, object]:
        name, split, path = row
        photo = read_photo(path)
        x, y = (photo.width - 200) // 2, (photo.height - 200) // 2
        square = photo.crop((x, y, x + 200, y + 200)).resize((96, 96), Image.Resampling.BICUBIC)
        label = BLOOD_FOLDERS.index(path.parent.name)
        return {"name": name, "image": encode(square, BLOOD_QUALITY), "label": label, "split": split}

    write_rows(target, originals.by_list("blood", photos), make)
    return ""


@register_data(
    "blood",
    title="PBC peripheral blood cells",
    licence="CC BY 4.0",
    citation="A. Acevedo et al.: A dataset of microscopic peripheral blood cell images for development of automatic "
    "recognition systems. Data in Brief, 2020.",
    form="the middle 200 x 200 pixels scaled to 96 x 96; own split 70/10/20",
    files="`blood.parquet`: name, image, label, split",
    source=Source(
        "https://data.mendeley.com/datasets/snkd93bnjr/1",
        BLOOD_FILE,
        (Archive("PBC_dataset_normal_DIB.zip"),),
        _make_blood,
        "how photos were scaled is not known: here bicubic",
    ),
    answers="cell",
)
def load_blood(split: str = "train", *, limit: int | None = None) -> ImageSet:
    """Load the blood cells, (N, 3, 96, 96), from ``blood.parquet``, splits ``"train"``, ``"val"`` and ``"test"``."""
    table, _ = files.read_split(BLOOD_FILE, "PBC peripheral blood cells", ["name", "image", "label"], split, limit)
    labels = files.checked_labels(table["label"], BLOOD_CLASSES, "the blood cells")
    images, names = files.decode_images(table["image"]), tuple(table["name"])
    return ImageSet(images=images, labels=labels, classes=BLOOD_CLASSES, split=split, names=names)


def _file(name: str, size: int) -> str:
    return f"{name}.npz" if size == SIZES[0] else f"{name}_{size}.npz"


def _make_medmnist(originals: Originals, target: Path) -> str:
    """The published archive as it is."""
    path = originals.folder(target.name) / target.name
    collection = target.stem.partition("_")[0]
    width = len(MEDMNIST_CLASSES[collection]) if collection == SEVERAL_CLASSES else 1
    _checked_counts(path, SPLITS, width)
    shutil.copyfile(path, target)
    return ""


def _make_pneumonia(originals: Originals, target: Path) -> str:
    """The published archive, of whose split train the images of the list are kept."""
    path = originals.folder(target.name) / target.name
    counts = _checked_counts(path, SPLITS, 1)
    arrays: dict[str, Any] = {
        f"{part}_{kind}": files.array_rows(path, f"{part}_{kind}", range(count))
        for part, count in counts.items()
        for kind in ("images", "labels")
    }
    places = defaultdict[str, list[int]](list)  # of images with a checksum; some are there twice
    for place, image in enumerate(arrays["train_images"]):
        places[f"{zlib.crc32(image.tobytes()):08x}"].append(place)
    keys = [key for key, _ in split_list("pneumonia")]
    rows = [places[key].pop(0) for key in keys if places[key]]
    if len(rows) < len(keys):
        shutil.copyfile(path, target)
        return f"{len(keys) - len(rows)} of {len(keys)} listed training images were not found, so all are kept"
    np.savez_compressed(target, **arrays | {name: arrays[name][rows] for name in ("train_images", "train_labels")})
    return ""


def _facts(title: str, size: int = SIZES[0]) -> dict[str, Any]:
    """The entry of a MedMNIST collection."""
    name = title.lower()
    file, md5 = _file(name, size), MEDMNIST_MD5[name] if size == SIZES[0] else ""
    archive = Archive(file, f"{MEDMNIST_PAGE}/files/{file}?download=1" if md5 else "", md5)
    return {
        "title": title,
        "licence": "CC BY-NC 4.0" if name == "dermamnist" else "CC BY 4.0",
        "citation": "J. Yang et al.: MedMNIST v2, a large-scale lightweight benchmark for 2D and 3D biomedical image "
        "classification. Scientific Data, 2023.",
        "form": f"{size} x {size} pixels",
        "files": f"`{file}`",
        "source": Source(MEDMNIST_PAGE, file, (archive,), _make_medmnist),
        "task": {SEVERAL_CLASSES: "several classes", ORDERED_CLASSES: "ordered classes"}.get(name, "classes"),
    }


_FACTS = _facts("PneumoniaMNIST")
_SOURCE = replace(
    _FACTS["source"],
    make=_make_pneumonia,
    differs="3,882 of the 4,708 published training images, as the project's models saw them",
)


@register_data("pneumonia", **_FACTS | {"source": _SOURCE})
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
