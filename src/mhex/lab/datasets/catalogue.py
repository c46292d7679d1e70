"""The table of data sets: a name, how to load it, its splits, and what a model card must say about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from mhex.errors import ArgumentError, unknown_name
from mhex.lab.datasets.ag_news import load_ag_news, load_ag_news_full
from mhex.lab.datasets.blood import load_blood
from mhex.lab.datasets.camvid import load_camvid
from mhex.lab.datasets.cifar10 import load_cifar10, load_cifar10_binary, load_cifar100
from mhex.lab.datasets.imagenet import load_imagenet, load_imagenet_multi
from mhex.lab.datasets.imagenet_segmentation import load_imagenet_segmentation
from mhex.lab.datasets.lidc import load_lidc, load_lidc_biomarkers
from mhex.lab.datasets.medmnist import ORDERED_CLASSES, SEVERAL_CLASSES, SIZES, TITLES, load_medmnist
from mhex.lab.datasets.movies import load_movies
from mhex.lab.datasets.personal import is_text, load_csv, load_folder
from mhex.lab.datasets.pets import load_pets
from mhex.lab.datasets.photo_files import Items, PhotoSet
from mhex.lab.datasets.photos import load_photos
from mhex.lab.datasets.sets import ImageSet, TextSet, data_folder
from mhex.lab.datasets.voc import load_voc

CITATIONS = {
    "pets": "O. M. Parkhi, A. Vedaldi, A. Zisserman, C. V. Jawahar: Cats and Dogs. IEEE Conference on Computer Vision "
    "and Pattern Recognition, 2012.",
    "cifar": "A. Krizhevsky: Learning Multiple Layers of Features from Tiny Images. Technical report, University of "
    "Toronto, 2009.",
    "blood": "A. Acevedo et al.: A dataset of microscopic peripheral blood cell images for development of automatic "
    "recognition systems. Data in Brief, 2020.",
    "medmnist": "J. Yang et al.: MedMNIST v2, a large-scale lightweight benchmark for 2D and 3D biomedical image "
    "classification. Scientific Data, 2023.",
    "imagenet": "O. Russakovsky et al.: ImageNet Large Scale Visual Recognition Challenge. International Journal of "
    "Computer Vision, 2015.",
    "real": "L. Beyer, O. J. Hénaff, A. Kolesnikov, X. Zhai, A. van den Oord: Are we done with ImageNet? arXiv "
    "2006.07159, 2020.",
    "imagenet_segmentation": "M. Guillaumin, D. Küttel, V. Ferrari: ImageNet Auto-Annotation with Segmentation "
    "Propagation. International Journal of Computer Vision, 2014.",
    "voc": "M. Everingham et al.: The Pascal Visual Object Classes Challenge: A Retrospective. International Journal "
    "of Computer Vision, 2015.",
    "camvid": "G. J. Brostow, J. Fauqueur, R. Cipolla: Semantic object classes in video: A high-definition ground "
    "truth database. Pattern Recognition Letters, 2009.",
    "lidc": "S. G. Armato III et al.: The Lung Image Database Consortium (LIDC) and Image Database Resource Initiative "
    "(IDRI). Medical Physics, 2011.",
    "ag_news": "X. Zhang, J. Zhao, Y. LeCun: Character-level Convolutional Networks for Text Classification. Advances "
    "in Neural Information Processing Systems, 2015.",
    "movies": "O. Zaidan, J. Eisner: Modeling Annotators. Empirical Methods in Natural Language Processing, 2008; J. "
    "DeYoung et al.: ERASER. Association for Computational Linguistics, 2020.",
}


AnySet = ImageSet | PhotoSet | TextSet  # of one class each: what a recipe can learn from
Task = Literal["classes", "ordered classes", "several classes", "pixels", "values"]


@dataclass(frozen=True)
class DataEntry:
    """A data set by name.

    Attributes:
        load: From a split and a keyword ``limit`` to the set: an `AnySet`, where the task is one of classes or ordered
            classes; else an `ImageSet`, a `SegmentationSet` or a `ValueSet`.
        title: Its full name.
        licence: Its licence.
        citation: What to cite.
        form: In which form the file holds it.
        files: What to place in the data folder.
        kind: ``"image"`` or ``"text"``.
        task: What is told of each sample.
        train: Split to learn from; None where all of it is for judging.
        validation: Split to choose by; None where there is none.
        test: Split to judge by.
        answers: What a class is, in one word.
        group_answers: What a group of classes is.
        beside: What ``load`` is given to load what explanations are judged by, such as masks.
        shown: What ``items`` is given.
        judged: What explanations can be judged by: masks, rationales, two classes.
    """

    load: Callable[..., Any]
    title: str
    licence: str
    citation: str
    form: str
    files: str
    kind: Literal["image", "text"] = "image"
    task: Task = "classes"
    train: str | None = "train"
    validation: str | None = "val"
    test: str = "test"
    answers: str = "class"
    group_answers: str = "group"
    beside: Mapping[str, Any] = field(default_factory=dict)
    shown: Mapping[str, Any] = field(default_factory=dict)
    judged: str = ""

    @property
    def learnable(self) -> bool:
        """Whether a recipe can train a classifier on it."""
        return self.train is not None and self.task in ("classes", "ordered classes")

    def items(self, split: str | None = None, *, limit: int | None = None, **options: Any) -> Items:
        """Samples for `mhex.evaluate`, with masks or rationales where the set has them.

        Args:
            split: By default the one to judge by.
            limit: At most so many samples, evenly spaced over the split.
            **options: For the loader, such as ``side``.

        Raises:
            DataMissingError: A file is missing; the message says what to place where.
            ArgumentError: The split is unknown or the limit is not positive.
        """
        loaded = self.load(split or self.test, limit=limit, **{**self.beside, **options})
        found: Items = loaded.items(**self.shown)
        if not len(found):
            raise ArgumentError(f"Nothing of {self.title} is left to be judged on: take more of it than {limit}.")
        return found


def own_entry(kind: str, path: str) -> DataEntry:
    """The entry of a folder of photos or of a table, with splits train and test.

    Args:
        kind: ``"folder"`` or ``"csv"``.
        path: In the data folder unless it is absolute.

    Raises:
        DataMissingError: The table is not there.
    """
    where = Path(path).expanduser()
    where = where if where.is_absolute() else data_folder() / where
    return DataEntry(
        partial(load_folder if kind == "folder" else load_csv, where),
        f"own data in {where.name}",
        "none named",
        "none",
        "as it was given",
        f"`{where.name}`",
        kind="text" if kind == "csv" and is_text(where) else "image",
        validation=None,
    )


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
