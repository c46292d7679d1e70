"""Oxford-IIIT Pet: photos of 37 cat and dog breeds with pixel masks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mhex.lab.datasets.sets import ImageSet, data_file
from mhex.lab.datasets.tables import DataFormatError, decode_images, pick_rows, read_columns

PETS_FILE = "pets.parquet"
PETS_DESCRIPTION = "Oxford-IIIT Pet with the columns name, image, trimap, breed, species and split"
SPECIES = ("cat", "dog")
MASK_OF_TRIMAP = (-1, 1, 0, -1)  # 1 animal, 2 background, 3 border; 0 is not used


@dataclass(frozen=True, eq=False, kw_only=True)
class Pets(ImageSet):
    """One split of the pets: photos squashed to a square, classes that are breeds, groups that are species.

    Attributes:
        species: Species of each photo, (N,), int64, a place in ``SPECIES``.
        trimaps: Pixel masks (1 animal, 2 background, 3 border), (N, H, W), uint8; None unless asked for.
    """

    species: Tensor
    trimaps: Tensor | None = None

    @property
    def class_species(self) -> tuple[int, ...]:
        """Species of each breed, a place in ``SPECIES``."""
        return self.group_of or ()

    def mask(self, row: int) -> Tensor | None:
        """Where the animal is, (H, W), int64: 1 there, 0 elsewhere, -1 at its border; None without trimaps."""
        return None if self.trimaps is None else torch.tensor(MASK_OF_TRIMAP)[self.trimaps[row].long()]


def load_pets(split: str = "trainval", *, trimaps: bool = False, limit: int | None = None) -> Pets:
    """Load one split of Oxford-IIIT Pet from ``pets.parquet`` in the data folder.

    Args:
        split: ``"trainval"``, ``"test"`` or ``"all"``.
        trimaps: Whether to load the pixel masks too.
        limit: At most so many photos, evenly spaced over the split.

    Returns:
        The photos with their labels.

    Raises:
        DataMissingError: The file is missing; the message says what to place where.
        DataFormatError: The file does not hold what it should.
        ArgumentError: The split is unknown or the limit is not positive.
    """
    path = data_file(PETS_FILE, PETS_DESCRIPTION)
    columns = ["name", "image", "breed", "species", "split"] + (["trimap"] if trimaps else [])
    table = read_columns(path, columns)
    classes, class_species = breeds(table["name"], table["breed"], table["species"])
    rows = pick_rows(table["split"], split, limit)
    maps = decode_images([table["trimap"][row] for row in rows], "L") if trimaps else None
    if maps is not None and (int(maps.min()) < 1 or int(maps.max()) > 3):
        raise DataFormatError(
            f"Trimaps should hold 1, 2 and 3, and {int(maps.min())}..{int(maps.max())} came: the file is damaged or of "
            "another data set."
        )
    return Pets(
        images=decode_images([table["image"][row] for row in rows]),
        labels=torch.tensor([table["breed"][row] for row in rows]),
        species=torch.tensor([table["species"][row] for row in rows]),
        names=tuple(table["name"][row] for row in rows),
        classes=classes,
        group_of=class_species,
        group_names=SPECIES,
        split=split,
        trimaps=maps,
    )


def breeds(
    names: Sequence[str], breed: Sequence[int], species: Sequence[int]
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Derive the names and the species of the breeds from the rows.

    Args:
        names: Name of each photo, the breed with underscores and a number: ``"american_bulldog_12"``.
        breed: Breed of each photo, counted from 0.
        species: Species of each photo, a place in ``SPECIES``.

    Returns:
        Readable names (``"american bulldog"``) and species of the breeds, both in breed order.

    Raises:
        DataFormatError: A breed has two names or two species, or the breeds are not counted from 0 without gaps.
    """
    found: dict[int, tuple[str, int]] = {}
    for name, label, of in zip(names, breed, species, strict=True):
        said = (re.sub(r"_\d+$", "", name).replace("_", " "), of)
        if found.setdefault(label, said) != said:
            raise DataFormatError(
                f"Every breed should have one name and one species, and breed {label} has both {found[label]} and "
                f"{said} (photo {name!r}): the file is damaged or of another data set."
            )
    if sorted(found) != list(range(len(found))) or not {of for _, of in found.values()} <= set(range(len(SPECIES))):
        raise DataFormatError(
            f"Breeds should be counted from 0 without gaps and species be 0 or 1, and {sorted(found)} with species "
            f"{sorted({of for _, of in found.values()})} came: the file is damaged or of another data set."
        )
    return tuple(found[label][0] for label in range(len(found))), tuple(found[label][1] for label in range(len(found)))
