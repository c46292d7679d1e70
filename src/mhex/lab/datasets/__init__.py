"""Data sets that the zoo is trained and judged on, and data of the user.

No data travels with the package. The environment variable ``MHEX_DATA`` names the folder that holds the files:

    from mhex.lab.datasets import load_pets

    test = load_pets("test", trimaps=True)
    test.images  # (N, 3, 160, 160), uint8
    mhex.evaluate(model, test.items(), ...)  # photos, labels and masks

Every loader takes ``split``, one of the data set's splits or ``"all"``, and ``limit``: at most so many samples, evenly
spaced over the split. It raises `DataMissingError` where a file is missing, and says what to place where;
`DataFormatError` where a file does not hold what it should; `ArgumentError` where the split is unknown or the limit is
not positive. A new data set is one new file here, with a loader under `register_data`.
"""

import importlib
import pkgutil

from mhex.lab.datasets.ag_news import AG_NEWS_CLASSES, load_ag_news, load_ag_news_full
from mhex.lab.datasets.catalogue import CATALOGUE, DataEntry, data_entry, register_data
from mhex.lab.datasets.cifar import CIFAR10_CLASSES, load_cifar10, load_cifar10_binary, load_cifar100
from mhex.lab.datasets.files import DATA_VARIABLE, DataFormatError, DataMissingError, data_file, data_folder
from mhex.lab.datasets.imagenet import imagenet_synsets, load_imagenet, load_imagenet_multi, load_photos, same_object
from mhex.lab.datasets.lidc import LIDC_CLASSES, load_lidc, load_lidc_biomarkers
from mhex.lab.datasets.medmnist import BLOOD_CLASSES, load_blood, load_medmnist, load_pneumonia
from mhex.lab.datasets.movies import MOVIES_CLASSES, load_movies
from mhex.lab.datasets.personal import load_csv, load_folder
from mhex.lab.datasets.pets import Pets, load_pets
from mhex.lab.datasets.segmentation import (
    CAMVID_CLASSES,
    VOC_CLASSES,
    ImageNetSegmentation,
    load_camvid,
    load_imagenet_segmentation,
    load_voc,
)
from mhex.lab.datasets.sets import ImageSet, Items, PhotoSet, SegmentationSet, TextSet, TwoClassSet, ValueSet

for _module in pkgutil.iter_modules(__path__):  # files that are not named above register their data sets, too
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["CATALOGUE", "DataEntry", "data_entry", "register_data"]
__all__ += ["DATA_VARIABLE", "DataFormatError", "DataMissingError", "data_file", "data_folder"]
__all__ += ["ImageSet", "Items", "PhotoSet", "SegmentationSet", "TextSet", "TwoClassSet", "ValueSet"]
__all__ += ["AG_NEWS_CLASSES", "load_ag_news", "load_ag_news_full"]
__all__ += ["CIFAR10_CLASSES", "load_cifar10", "load_cifar10_binary", "load_cifar100"]
__all__ += ["imagenet_synsets", "load_imagenet", "load_imagenet_multi", "load_photos", "same_object"]
__all__ += ["LIDC_CLASSES", "load_lidc", "load_lidc_biomarkers"]
__all__ += ["BLOOD_CLASSES", "load_blood", "load_medmnist", "load_pneumonia"]
__all__ += ["MOVIES_CLASSES", "load_movies"]
__all__ += ["load_csv", "load_folder"]
__all__ += ["Pets", "load_pets"]
__all__ += ["CAMVID_CLASSES", "VOC_CLASSES", "ImageNetSegmentation"]
__all__ += ["load_camvid", "load_imagenet_segmentation", "load_voc"]
