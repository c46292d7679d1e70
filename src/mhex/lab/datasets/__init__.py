"""Loaders for the data sets that the zoo is trained and judged on, and for data of one's own.

No data travels with the package. The environment variable ``MHEX_DATA`` names the folder that holds the files:

    from mhex.lab.datasets import load_pets

    test = load_pets("test", trimaps=True)
    test.images  # (N, 3, 160, 160), uint8
    mhex.evaluate(model, test.items(), ...)  # photos, labels and masks
"""

from mhex.lab.datasets.ag_news import AG_NEWS_CLASSES, load_ag_news, load_ag_news_full
from mhex.lab.datasets.blood import BLOOD_CLASSES, load_blood
from mhex.lab.datasets.camvid import CAMVID_CLASSES, load_camvid
from mhex.lab.datasets.catalogue import CATALOGUE, DataEntry, data_entry
from mhex.lab.datasets.cifar10 import CIFAR10_CLASSES, load_cifar10, load_cifar10_binary, load_cifar100
from mhex.lab.datasets.imagenet import imagenet_synsets, load_imagenet, load_imagenet_multi, same_object
from mhex.lab.datasets.imagenet_segmentation import ImageNetSegmentation, load_imagenet_segmentation
from mhex.lab.datasets.lidc import LIDC_CLASSES, load_lidc, load_lidc_biomarkers
from mhex.lab.datasets.medmnist import load_medmnist, load_pneumonia
from mhex.lab.datasets.movies import MOVIES_CLASSES, load_movies
from mhex.lab.datasets.personal import load_csv, load_folder
from mhex.lab.datasets.pets import Pets, load_pets
from mhex.lab.datasets.photo_files import Items, PhotoSet, SegmentationSet, TwoClassSet
from mhex.lab.datasets.photos import load_photos
from mhex.lab.datasets.sets import DATA_VARIABLE, DataMissingError, ImageSet, TextSet, ValueSet, data_file, data_folder
from mhex.lab.datasets.tables import DataFormatError
from mhex.lab.datasets.voc import VOC_CLASSES, load_voc

__all__ = [
    "AG_NEWS_CLASSES",
    "BLOOD_CLASSES",
    "CAMVID_CLASSES",
    "CATALOGUE",
    "CIFAR10_CLASSES",
    "DATA_VARIABLE",
    "LIDC_CLASSES",
    "MOVIES_CLASSES",
    "VOC_CLASSES",
    "DataEntry",
    "DataFormatError",
    "DataMissingError",
    "ImageNetSegmentation",
    "ImageSet",
    "Items",
    "Pets",
    "PhotoSet",
    "SegmentationSet",
    "TextSet",
    "TwoClassSet",
    "ValueSet",
    "data_entry",
    "data_file",
    "data_folder",
    "imagenet_synsets",
    "load_ag_news",
    "load_ag_news_full",
    "load_blood",
    "load_camvid",
    "load_cifar10",
    "load_cifar10_binary",
    "load_cifar100",
    "load_csv",
    "load_folder",
    "load_imagenet",
    "load_imagenet_multi",
    "load_imagenet_segmentation",
    "load_lidc",
    "load_lidc_biomarkers",
    "load_medmnist",
    "load_movies",
    "load_pets",
    "load_photos",
    "load_pneumonia",
    "load_voc",
    "same_object",
]
