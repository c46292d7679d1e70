"""Loaders for the data sets that the zoo is trained and judged on.

No data travels with the package. The environment variable ``MHEX_DATA`` names the folder that holds the files:

    from mhex.data import load_pets

    test = load_pets("test")
    test.images  # (N, 3, 160, 160), uint8
"""

from mhex.data.cifar10 import CIFAR10_CLASSES, Cifar10, load_cifar10
from mhex.data.folder import DATA_VARIABLE, DataMissingError, data_file, data_folder
from mhex.data.pets import Pets, load_pets
from mhex.data.table import DataFormatError

__all__ = [
    "CIFAR10_CLASSES",
    "DATA_VARIABLE",
    "Cifar10",
    "DataFormatError",
    "DataMissingError",
    "Pets",
    "data_file",
    "data_folder",
    "load_cifar10",
    "load_pets",
]
