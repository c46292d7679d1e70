"""Where the data files are: the folder named by the environment variable ``MHEX_DATA``."""

from __future__ import annotations

import os
from pathlib import Path

from mhex.errors import MhexError

DATA_VARIABLE = "MHEX_DATA"


class DataMissingError(MhexError, FileNotFoundError):
    """A data file or the data folder is not there; the message says what to place where."""


def data_folder() -> Path:
    """The folder that ``MHEX_DATA`` names.

    Returns:
        The folder, which exists.

    Raises:
        DataMissingError: The variable is not set, or what it names is not a folder.
    """
    named = os.environ.get(DATA_VARIABLE, "").strip()
    if not named:
        raise DataMissingError(
            f"No data folder is known: set the environment variable {DATA_VARIABLE} to the folder that holds the data "
            f"files, for example: export {DATA_VARIABLE}=~/mhex-data"
        )
    folder = Path(named).expanduser()
    if not folder.is_dir():
        raise DataMissingError(
            f"{DATA_VARIABLE} names {str(folder)!r}, which is not a folder: create it and place the data files in it, "
            f"or set {DATA_VARIABLE} to the folder that holds them."
        )
    return folder


def data_file(name: str, description: str) -> Path:
    """Find one data file in the data folder.

    Args:
        name: File name inside the folder, such as ``"pets.parquet"``.
        description: What the file holds and which columns it needs, for the message when it is missing.

    Returns:
        The path of the file, which exists.

    Raises:
        DataMissingError: There is no such file; the message says what to place where.
    """
    named = os.environ.get(DATA_VARIABLE, "").strip()
    if not named:
        raise DataMissingError(
            f"{name} ({description}) is needed, and no data folder is known: place the file in a folder of your "
            f"choice and set the environment variable {DATA_VARIABLE} to that folder."
        )
    path = data_folder() / name
    if not path.is_file():
        raise DataMissingError(
            f"{name} ({description}) is not in the data folder {str(path.parent)!r}: place it there, or set the "
            f"environment variable {DATA_VARIABLE} to the folder that holds it."
        )
    return path
