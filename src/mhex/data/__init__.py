"""Loaders for the data sets that the zoo is trained and judged on.

No data travels with the package. The environment variable ``MHEX_DATA`` names the folder that holds the files:

    from mhex.data import load_pets

    test = load_pets("test")
    test.images  # (N, 3, 160, 160), uint8
"""

from mhex.data.ag_news import AG_NEWS_CLASSES, load_ag_news
from mhex.data.blood import BLOOD_CLASSES, load_blood
from mhex.data.catalogue import CATALOGUE, DataEntry, data_entry
from mhex.data.cifar10 import CIFAR10_CLASSES, load_cifar10
from mhex.data.folder import DATA_VARIABLE, DataMissingError, data_file, data_folder
from mhex.data.imagenet import PhotoSet, load_imagenet
from mhex.data.medmnist import load_medmnist, load_pneumonia
from mhex.data.movies import MOVIES_CLASSES, load_movies
from mhex.data.pets import Pets, load_pets
from mhex.data.sets import ImageSet, TextSet
from mhex.data.table import DataFormatError

__all__ = [
    "AG_NEWS_CLASSES",
    "BLOOD_CLASSES",
    "CATALOGUE",
    "CIFAR10_CLASSES",
    "DATA_VARIABLE",
    "MOVIES_CLASSES",
    "DataEntry",
    "DataFormatError",
    "DataMissingError",
    "ImageSet",
    "Pets",
    "PhotoSet",
    "TextSet",
    "data_entry",
    "data_file",
    "data_folder",
    "load_ag_news",
    "load_blood",
    "load_cifar10",
    "load_imagenet",
    "load_medmnist",
    "load_movies",
    "load_pets",
    "load_pneumonia",
]
