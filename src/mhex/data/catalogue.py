"""The table of data sets: a name, how to load it, its splits, and what a model card must say about it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from mhex.data.ag_news import load_ag_news, load_ag_news_full
from mhex.data.blood import load_blood
from mhex.data.camvid import load_camvid
from mhex.data.cifar10 import load_cifar10
from mhex.data.cifar_binary import load_cifar10_binary, load_cifar100
from mhex.data.citations import CITATIONS
from mhex.data.entry import AnySet, DataEntry, Task
from mhex.data.imagenet import load_imagenet
from mhex.data.imagenet_multi import load_imagenet_multi
from mhex.data.imagenet_segmentation import load_imagenet_segmentation
from mhex.data.lidc import load_lidc, load_lidc_biomarkers
from mhex.data.medmnist import load_medmnist
from mhex.data.medmnist_names import ORDERED_CLASSES, SEVERAL_CLASSES, SIZES, TITLES
from mhex.data.movies import load_movies
from mhex.data.own_entry import own_entry
from mhex.data.pets import load_pets
from mhex.data.photos import load_photos
from mhex.data.voc import load_voc
from mhex.errors import unknown_name

__all__ = ["CATALOGUE", "AnySet", "DataEntry", "data_entry"]


def _medmnist(name: str, size: int = SIZES[0]) -> DataEntry:
    file = f"{name}.npz" if size == SIZES[0] else f"{name}_{size}.npz"
    task: Task = "several classes" if name in SEVERAL_CLASSES else "classes"
    return DataEntry(
        partial(load_medmnist, name, size=size),
        TITLES[name],
        "CC BY-NC 4.0" if name == "dermamnist" else "CC BY 4.0",
        CITATIONS["medmnist"],
        f"{size} x {size} pixels",
        f"`{file}`",
        task="ordered classes" if name in ORDERED_CLASSES else task,
    )


CATALOGUE: Mapping[str, DataEntry] = {
    "pets": DataEntry(
        load_pets,
        "Oxford-IIIT Pet",
        "CC BY-SA 4.0",
        CITATIONS["pets"],
        "photos squashed to 160 x 160 pixels; trained on the split trainval, judged on the kept part of test",
        "`pets.parquet`: name, image, trimap, breed, species, split",
        train="trainval",
        validation=None,
        answers="breed",
        group_answers="cat_dog",
        beside={"trimaps": True},
        judged="masks",
    ),
    "cifar10": DataEntry(
        load_cifar10,
        "CIFAR-10",
        "none named",
        CITATIONS["cifar"],
        "32 x 32 pixels, stored as JPEG",
        "`cifar10.parquet`: image, label, split",
        validation=None,
    ),
    "cifar10_binary": DataEntry(
        load_cifar10_binary,
        "CIFAR-10",
        "none named",
        CITATIONS["cifar"],
        "32 x 32 pixels, as published",
        "`cifar-10-batches-bin/`: the binary version",
        validation=None,
    ),
    "cifar100": DataEntry(
        load_cifar100,
        "CIFAR-100",
        "none named",
        CITATIONS["cifar"],
        "32 x 32 pixels, as published",
        "`cifar-100-binary/`: the binary version",
        validation=None,
        group_answers="coarse_class",
    ),
    "blood": DataEntry(
        load_blood,
        "PBC peripheral blood cells",
        "CC BY 4.0",
        CITATIONS["blood"],
        "the middle 200 x 200 pixels scaled to 96 x 96; own split 70/10/20",
        "`blood.parquet`: name, image, label, split",
        answers="cell",
    ),
    "pneumonia": _medmnist("pneumoniamnist"),
    **{name: _medmnist(name) for name in TITLES if name != "pneumoniamnist"},
    "imagenet": DataEntry(
        load_imagenet,
        "ImageNet-1k",
        "research use, see image-net.org",
        CITATIONS["imagenet"],
        "the middle square of each photo at 256 x 256 pixels; judged on the split val",
        "`imagenet/train/SYNSET/*.JPEG`, `imagenet/val/SYNSET/*.JPEG`",
        validation=None,
        test="val",
    ),
    "imagenet_multi": DataEntry(
        load_imagenet_multi,
        "ImageNet-1k, photos of several classes",
        "labels Apache-2.0, photos research use",
        CITATIONS["real"],
        "validation photos with two classes that are different objects",
        "`imagenet/real.json` beside `imagenet/val/`; or `file=` another, from names of photos to classes",
        train=None,
        validation=None,
        test="val",
        judged="two classes",
    ),
    "imagenet_segmentation": DataEntry(
        load_imagenet_segmentation,
        "ImageNet-Segmentation",
        "research use, see image-net.org",
        CITATIONS["imagenet_segmentation"],
        "4,276 photos squashed to 224 x 224 pixels, with the pixels of one object",
        "`gtsegs_ijcv.mat`; needs `mhex[data]`",
        task="pixels",
        train=None,
        validation=None,
        judged="masks",
    ),
    "photos": DataEntry(
        load_photos,
        "Photos of 106 ImageNet classes",
        "research use, see image-net.org",
        CITATIONS["imagenet"],
        "one photo each, the middle square at 256 x 256 pixels",
        "`photos.parquet`: name, image",
        train=None,
        validation=None,
    ),
    "voc": DataEntry(
        load_voc,
        "PASCAL VOC 2012 segmentation",
        "see host.robots.ox.ac.uk/pascal/VOC and the terms of Flickr",
        CITATIONS["voc"],
        "photos squashed to 224 x 224 pixels, a class of 20 or none for every pixel",
        "`VOCdevkit/VOC2012/`: `JPEGImages`, `SegmentationClass`, `ImageSets/Segmentation`",
        task="pixels",
        validation=None,
        test="val",
        shown={"of": "each"},
        judged="masks, two classes",
    ),
    "camvid": DataEntry(
        load_camvid,
        "CamVid",
        "none named; research use",
        CITATIONS["camvid"],
        "street scenes at half size, a class of 11 for every pixel",
        "`camvid.parquet`: name, image, mask, split",
        task="pixels",
        shown={"of": "each"},
        judged="masks, two classes",
    ),
    "lidc": DataEntry(
        load_lidc,
        "Lung nodules of LIDC-IDRI",
        "CC BY 3.0",
        CITATIONS["lidc"],
        "crops at 64 x 64 pixels, mean rating of malignancy below or above 3",
        "`lidc/nodules.csv`: image, malignancy, biomarkers, perhaps split; crops beside it",
    ),
    "lidc_biomarkers": DataEntry(
        load_lidc_biomarkers,
        "Lung nodules of LIDC-IDRI",
        "CC BY 3.0",
        CITATIONS["lidc"],
        "crops at 64 x 64 pixels with biomarkers as numbers",
        "as for `lidc`",
        task="values",
    ),
    "ag_news": DataEntry(
        load_ag_news,
        "AG News",
        "none named; non-commercial use",
        CITATIONS["ag_news"],
        "7,043 items drawn from the official test file",
        "`ag_news.parquet`: label, title, text, split",
        kind="text",
        answers="topic",
    ),
    "ag_news_full": DataEntry(
        load_ag_news_full,
        "AG News",
        "none named; non-commercial use",
        CITATIONS["ag_news"],
        "as published: 120,000 items to learn from, 7,600 to judge by",
        "`ag_news/train.csv` and `test.csv` as published; or `ag_news/data/*.parquet` of the Hugging Face hub; or "
        "`ag_news_full.parquet`: label, title, text, split",
        kind="text",
        validation=None,
        answers="topic",
    ),
    "movies": DataEntry(
        load_movies,
        "Movie Reviews (ERASER)",
        "none named",
        CITATIONS["movies"],
        "1,999 reviews with the words that people marked as reasons",
        "`movies/`: `docs`, `train.jsonl`, `val.jsonl`, `test.jsonl`; or `movies.parquet`: text, label, evidence, "
        "split",
        kind="text",
        answers="sentiment",
        judged="rationales",
    ),
}


def data_entry(name: str) -> DataEntry:
    """The entry of a data set; an unknown name is refused with near ones.

    Args:
        name: Of the catalogue; or ``NAME_64``, ``NAME_128``, ``NAME_224`` of a MedMNIST collection; or
            ``folder:PATH`` or ``csv:PATH`` of data of one's own, in the data folder unless the path is absolute.
    """
    kind, _, path = name.partition(":")
    if path and kind in ("folder", "csv"):
        return own_entry(kind, path)
    collection, _, size = name.rpartition("_")
    if name in TITLES:
        return _medmnist(name)
    if collection in TITLES and size in map(str, SIZES[1:]):
        return _medmnist(collection, int(size))
    if name not in CATALOGUE:
        raise unknown_name("data set", name, CATALOGUE)
    return CATALOGUE[name]
