"""What every loader returns: a set of images or a set of texts, with labels and the names of the classes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mhex.errors import MhexError
from mhex.lab.datasets.photo_files import Items, PhotoRows, one_photo
from mhex.lab.datasets.tables import DataFormatError

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


@dataclass(frozen=True, eq=False, kw_only=True)
class ImageSet:
    """One split of a collection of images.

    Attributes:
        images: (N, 3, H, W), uint8.
        labels: Class of each image, (N,), int64, a place in ``classes``; where an image may have several classes,
            (N, C), int64, 1 for those it has and 0 for the others.
        classes: Names of the classes.
        split: The split that was asked for.
        names: Name of each image, N of them.
        group_of: Group of each class, a place in ``group_names``; None where classes have no groups.
        group_names: Names of the groups.
    """

    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    split: str
    names: tuple[str, ...] = field(repr=False)
    group_of: tuple[int, ...] | None = None
    group_names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def groups(self) -> dict[str, list[str]]:
        """The classes of each group, such as ``{"cat": ["Abyssinian", ...], "dog": [...]}``; empty without groups."""
        return {
            group: [name for name, of in zip(self.classes, self.group_of or (), strict=True) if of == place]
            for place, group in enumerate(self.group_names)
        }

    def mask(self, row: int) -> Tensor | None:
        """Where the object of an image is, (H, W), int64: 1 there, 0 elsewhere, -1 to be ignored; None if not known."""
        return None

    def items(self) -> Items:
        """The images for `mhex.evaluate`: ``image``, ``label`` where an image has one class, ``mask`` where known."""

        def take(row: int) -> dict[str, Any]:
            item: dict[str, Any] = {"image": one_photo(self.images, row)}
            if self.labels.dim() == 1:
                item["label"] = int(self.labels[row])
            mask = self.mask(row)
            return item if mask is None else {**item, "mask": mask}

        return Items(len(self), take)


@dataclass(frozen=True, eq=False, kw_only=True)
class TextSet:
    """One split of a collection of texts.

    Attributes:
        texts: N strings.
        labels: Class of each text, (N,), int64, a place in ``classes``.
        classes: Names of the classes.
        split: The split that was asked for.
        rationales: For each text the words, counted from 0 and split at white space, that people marked as the reason
            for its class: spans (first, last + 1), rising. None where nobody marked any.
    """

    texts: tuple[str, ...] = field(repr=False)
    labels: Tensor
    classes: tuple[str, ...]
    split: str
    rationales: tuple[tuple[tuple[int, int], ...], ...] | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.labels)

    def marked(self, row: int) -> Tensor | None:
        """Which words of a text people marked, (words,), bool; None where nobody marked any text."""
        if self.rationales is None:
            return None
        found = torch.zeros(len(self.texts[row].split()), dtype=torch.bool)
        for first, end in self.rationales[row]:
            found[first:end] = True
        return found

    def items(self) -> Items:
        """The texts for `mhex.evaluate`: ``text``, ``label``, and ``rationale``, the numbers of the marked words."""

        def take(row: int) -> dict[str, Any]:
            item: dict[str, Any] = {"text": self.texts[row], "label": int(self.labels[row])}
            marked = self.marked(row)
            return item if marked is None else {**item, "rationale": marked.nonzero()[:, 0].tolist()}

        return Items(len(self), take)


@dataclass(frozen=True, eq=False, kw_only=True)
class ValueSet:
    """One split of a collection of images with measured values instead of classes, for regression.

    Attributes:
        images: N images, taken like rows of a tensor: (B, 3, H, W), uint8.
        values: (N, K), float32.
        value_names: What the K values are.
        split: The split that was asked for.
        names: Name of each image.
    """

    images: Tensor | PhotoRows
    values: Tensor
    value_names: tuple[str, ...]
    split: str
    names: tuple[str, ...] = field(repr=False)

    def __len__(self) -> int:
        return len(self.values)

    def items(self) -> Items:
        """The images for `mhex.evaluate`: ``image`` alone, since what is explained is an output by number."""
        return Items(len(self), lambda row: {"image": one_photo(self.images, row)})


def checked_labels(values: Sequence[int], classes: Sequence[str], what: str) -> Tensor:
    """Labels as a tensor, each a place in ``classes``.

    Args:
        values: N class numbers.
        classes: Names of the classes.
        what: Name of the data set, for the message.

    Returns:
        (N,), int64.

    Raises:
        DataFormatError: A label is not a class.
    """
    try:
        labels = torch.tensor(values, dtype=torch.int64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataFormatError(f"Labels of {what} should be whole numbers, and others came ({error}).") from error
    if len(labels) and (int(labels.min()) < 0 or int(labels.max()) >= len(classes)):
        raise DataFormatError(
            f"Labels of {what} should lie in 0..{len(classes) - 1}, and {int(labels.min())}..{int(labels.max())} came: "
            "the file is damaged or of another data set."
        )
    return labels
