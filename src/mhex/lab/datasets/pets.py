"""Oxford-IIIT Pet: photos of 37 cat and dog breeds with pixel masks.

The photos lie in a parquet file at one size; torchvision's OxfordIIITPet reads the published archives of 800 MB.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from mhex.lab.datasets.archives import Archive
from mhex.lab.datasets.catalogue import register_data
from mhex.lab.datasets.files import data_file, decode_images, fitted, opened_image, pick_rows, read_columns, wrong_file
from mhex.lab.datasets.sets import ImageSet
from mhex.lab.datasets.source import Originals, Source, encode, read_photo, write_rows

PETS_FILE = "pets.parquet"
SPECIES = ("cat", "dog")
MASK_OF_TRIMAP = (-1, 1, 0, -1)  # 1 animal, 2 background, 3 border; 0 is not used
SIDE, QUALITY = 160, 85  # of the photos in pixels, and of their JPEG
_URL = "https://www.robots.ox.ac.uk/~vgg/data/pets"
ARCHIVES = (
    Archive("images.tar.gz", f"{_URL}/data/images.tar.gz", "5c4f3ee8e5d25df40f4fd59a7f44e54c"),
    Archive("annotations.tar.gz", f"{_URL}/data/annotations.tar.gz", "95a8c909bbe2e81eed6a22bccdf3f68f"),
)


@dataclass(frozen=True, eq=False, kw_only=True)
class Pets(ImageSet):
    """One split of the pets: photos squashed to a square, classes that are breeds, groups that are species."""

    species: Tensor  # species of each photo, (N,), int64, a place in `SPECIES`
    trimaps: Tensor | None = None  # masks (1 animal, 2 background, 3 border), (N, H, W), uint8; None unless asked for

    @property
    def class_species(self) -> tuple[int, ...]:
        """Species of each breed, a place in ``SPECIES``."""
        return self.group_of or ()

    def mask(self, row: int) -> Tensor | None:
        """Where the animal is, (H, W), int64: 1 there, 0 elsewhere, -1 at its border; None without trimaps."""
        return None if self.trimaps is None else torch.tensor(MASK_OF_TRIMAP)[self.trimaps[row].long()]


def _make(originals: Originals, target: Path) -> str:
    """The photos of the list and their trimaps, squashed."""
    photos = originals.photos(lambda path: path.parent.name == "images")
    trimaps = originals.photos(lambda path: path.parent.name == "trimaps")
    text = (originals.folder("list.txt") / "list.txt").read_text(encoding="utf-8", errors="replace")
    lines = [line.split() for line in text.splitlines() if not line.startswith("#")]
    if wrong := [line for line in lines if len(line) != 4 or not all(word.isdecimal() for word in line[1:])]:
        words = f"Lines of list.txt should be a name and the numbers of breed, species and photo, and {wrong[0]} came"
        raise wrong_file(words, originals.source.advice)
    labels = {name: (int(breed) - 1, int(species) - 1) for name, breed, species, _ in lines}
    complete = {name: labels[name] for name in labels if name in photos and name in trimaps}

    def make(row: tuple[str, str, tuple[int, int]]) -> dict[str, object]:
        name, split, (breed, species) = row
        with opened_image(trimaps[name], trimaps[name].name) as image:
            trimap = fitted(image.convert("L"), SIDE, "squash", nearest=True)
        photo = fitted(read_photo(photos[name]), SIDE, "squash")
        images = {"image": encode(photo, QUALITY), "trimap": encode(trimap)}
        return {"name": name, **images, "breed": breed, "species": species, "split": split}

    write_rows(target, originals.by_list("pets", complete), make)
    return ""


@register_data(
    "pets",
    title="Oxford-IIIT Pet",
    licence="CC BY-SA 4.0",
    citation="O. M. Parkhi, A. Vedaldi, A. Zisserman, C. V. Jawahar: Cats and Dogs. IEEE Conference on Computer Vision "
    "and Pattern Recognition, 2012.",
    form="photos squashed to 160 x 160 pixels; trained on the split trainval, judged on the kept part of test",
    files="`pets.parquet`: name, image, trimap, breed, species, split",
    source=Source(_URL, PETS_FILE, ARCHIVES, _make, "how photos were scaled is not known: here bicubic"),
    train="trainval",
    validation=None,
    answers="breed",
    group_answers="cat_dog",
    load_options={"trimaps": True},
    judged="masks",
)
def load_pets(split: str = "trainval", *, trimaps: bool = False, limit: int | None = None) -> Pets:
    """Load Oxford-IIIT Pet from ``pets.parquet``, splits trainval and test; ``trimaps`` loads the pixel masks too."""
    columns = ["name", "image", "breed", "species", "split"] + (["trimap"] if trimaps else [])
    path = data_file(PETS_FILE, "Oxford-IIIT Pet with the columns name, image, trimap, breed, species and split")
    table = read_columns(path, columns)
    classes, class_species = _breeds(table["name"], table["breed"], table["species"])
    rows = pick_rows(table["split"], split, limit)
    maps = decode_images([table["trimap"][row] for row in rows], "L") if trimaps else None
    if maps is not None and (int(maps.min()) < 1 or int(maps.max()) > 3):
        raise wrong_file(f"Trimaps should hold 1, 2 and 3, and {int(maps.min())}..{int(maps.max())} came")
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


def _breeds(
    names: Sequence[str], breeds: Sequence[int], species: Sequence[int]
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Readable names and species of the breeds, from the names of photos, such as ``"american_bulldog_12"``."""
    facts: dict[int, tuple[str, int]] = {}
    for name, breed, kind in zip(names, breeds, species, strict=True):
        fact = (re.sub(r"_\d+$", "", name).replace("_", " "), kind)
        if facts.setdefault(breed, fact) != fact:
            words = f"breed {breed} has both {facts[breed]} and {fact} (photo {name!r})"
            raise wrong_file(f"Every breed should have one name and one species, and {words}")
    kinds = {kind for _, kind in facts.values()}
    if sorted(facts) != list(range(len(facts))) or not kinds <= set(range(len(SPECIES))):
        words = f"{sorted(facts)} with species {sorted(kinds)} came"
        raise wrong_file(f"Breeds should be counted from 0 without gaps and species be 0 or 1, and {words}")
    return tuple(facts[breed][0] for breed in range(len(facts))), tuple(facts[breed][1] for breed in range(len(facts)))
