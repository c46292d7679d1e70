"""The table of data sets: a name, how to load it, its splits, and what a model card must say about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

from mhex.data.ag_news import AG_NEWS_FULL_FILE, load_ag_news
from mhex.data.blood import load_blood
from mhex.data.cifar10 import load_cifar10
from mhex.data.imagenet import PhotoSet, load_imagenet
from mhex.data.medmnist import load_medmnist
from mhex.data.movies import load_movies
from mhex.data.pets import load_pets
from mhex.data.sets import ImageSet, TextSet
from mhex.errors import unknown_name

AnySet = ImageSet | PhotoSet | TextSet

_MEDMNIST = (
    "J. Yang et al.: MedMNIST v2, a large-scale lightweight benchmark for 2D and 3D biomedical image classification. "
    "Scientific Data, 2023."
)
_AG_NEWS = (
    "X. Zhang, J. Zhao, Y. LeCun: Character-level Convolutional Networks for Text Classification. Advances in Neural "
    "Information Processing Systems, 2015."
)


@dataclass(frozen=True)
class DataEntry:
    """A data set by name.

    Attributes:
        load: From a split and a keyword ``limit`` to the set.
        title: Its full name.
        licence: Its licence.
        citation: What to cite.
        form: In which form the file holds it.
        kind: ``"image"`` or ``"text"``.
        train: Split to learn from.
        validation: Split to choose by; None where there is none.
        test: Split to judge by.
        answers: What a class is, in one word.
        group_answers: What a group of classes is.
    """

    load: Callable[..., AnySet]
    title: str
    licence: str
    citation: str
    form: str
    kind: Literal["image", "text"] = "image"
    train: str = "train"
    validation: str | None = "val"
    test: str = "test"
    answers: str = "class"
    group_answers: str = "group"


def _medmnist(name: str, title: str, licence: str = "CC BY 4.0") -> DataEntry:
    return DataEntry(partial(load_medmnist, name), title, licence, _MEDMNIST, "28 x 28 pixels")


CATALOGUE: Mapping[str, DataEntry] = {
    "pets": DataEntry(
        load_pets,
        "Oxford-IIIT Pet",
        "CC BY-SA 4.0",
        "O. M. Parkhi, A. Vedaldi, A. Zisserman, C. V. Jawahar: Cats and Dogs. IEEE Conference on Computer Vision and "
        "Pattern Recognition, 2012.",
        "photos squashed to 160 x 160 pixels; trained on the split trainval, judged on the kept part of test",
        train="trainval",
        validation=None,
        answers="breed",
        group_answers="cat_dog",
    ),
    "cifar10": DataEntry(
        load_cifar10,
        "CIFAR-10",
        "none named",
        "A. Krizhevsky: Learning Multiple Layers of Features from Tiny Images. Technical report, University of "
        "Toronto, 2009.",
        "32 x 32 pixels, stored as JPEG",
        validation=None,
    ),
    "blood": DataEntry(
        load_blood,
        "PBC peripheral blood cells",
        "CC BY 4.0",
        "A. Acevedo et al.: A dataset of microscopic peripheral blood cell images for development of automatic "
        "recognition systems. Data in Brief, 2020.",
        "the middle 200 x 200 pixels scaled to 96 x 96; own split 70/10/20",
        answers="cell",
    ),
    "pneumonia": _medmnist("pneumoniamnist", "PneumoniaMNIST"),
    "pathmnist": _medmnist("pathmnist", "PathMNIST"),
    "bloodmnist": _medmnist("bloodmnist", "BloodMNIST"),
    "tissuemnist": _medmnist("tissuemnist", "TissueMNIST"),
    "organamnist": _medmnist("organamnist", "OrganAMNIST"),
    "imagenet": DataEntry(
        load_imagenet,
        "ImageNet-1k",
        "research use, see image-net.org",
        "O. Russakovsky et al.: ImageNet Large Scale Visual Recognition Challenge. International Journal of Computer "
        "Vision, 2015.",
        "the middle square of each photo at 256 x 256 pixels; judged on the split val",
        validation=None,
        test="val",
    ),
    "ag_news": DataEntry(
        load_ag_news,
        "AG News",
        "none named; non-commercial use",
        _AG_NEWS,
        "7,043 items drawn from the official test file",
        kind="text",
        answers="topic",
    ),
    "ag_news_full": DataEntry(
        partial(load_ag_news, file=AG_NEWS_FULL_FILE),
        "AG News",
        "none named; non-commercial use",
        _AG_NEWS,
        "as published: 120,000 items to learn from, 7,600 to judge by",
        kind="text",
        validation=None,
        answers="topic",
    ),
    "movies": DataEntry(
        load_movies,
        "Movie Reviews (ERASER)",
        "none named",
        "O. Zaidan, J. Eisner: Modeling Annotators. Empirical Methods in Natural Language Processing, 2008; J. DeYoung "
        "et al.: ERASER. Association for Computational Linguistics, 2020.",
        "1,999 reviews with the words that people marked as reasons",
        kind="text",
        answers="sentiment",
    ),
}


def data_entry(name: str) -> DataEntry:
    """The entry of a data set; an unknown name is refused with near ones."""
    if name not in CATALOGUE:
        raise unknown_name("data set", name, CATALOGUE)
    return CATALOGUE[name]
