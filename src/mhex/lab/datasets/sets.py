"""Loaded data: images, photos in files, texts, values, a class for every pixel; and pictures of two classes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from PIL import Image
from torch import Tensor

from mhex.errors import ArgumentError, unknown_name
from mhex.inputs.samples import ClassLabel
from mhex.lab.datasets.files import PhotoRows

Form = Literal["side-by-side", "mosaic"]
Unit = tuple[int, ...]  # rows of photos of one class that go into one picture of two classes
VOID = 255  # in maps of classes: a pixel that has no class


class Items(Sequence[dict[str, Any]]):
    """Dictionaries that are made when they are taken, so that a large collection is never in memory at once.

    Keys are those of `mhex.evaluate`, the same for all items: ``image`` (a photo) or ``text``, and beside it ``label``,
    ``mask``, ``rationale`` or ``other``. The function `take` makes the dictionary of a place 0..count-1.
    """

    def __init__(self, count: int, take: Callable[[int], dict[str, Any]]) -> None:
        self._count, self._take = count, take

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            position = range(self._count)[place]
            return Items(len(position), lambda inner: self._take(position[inner]))
        if not -self._count <= place < self._count:
            raise IndexError(f"There are {self._count} items, and number {place} was asked for.")
        return self._take(place % self._count)


def photo_at(images: Tensor | PhotoRows, row: int) -> Image.Image:
    """One row of images (N, 3, H, W), uint8, as a photo."""
    pixels = images[torch.tensor([row])][0]
    return Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())


@dataclass(frozen=True, eq=False, kw_only=True)
class LabelledSet:
    """One split of a collection whose samples have classes."""

    labels: Tensor  # class of each sample, (N,), int64, a place in `classes`
    classes: tuple[str, ...]  # their names
    split: str  # the split that was asked for
    group_of: tuple[int, ...] | None = None  # group of each class, a place in `group_names`; None without groups
    group_names: tuple[str, ...] = ()
    by_name: bool = False  # whether a model may number the classes in another way, so that labels go to it by name

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def groups(self) -> dict[str, list[str]]:
        """The classes of each group, such as ``{"cat": ["Abyssinian", ...], "dog": [...]}``; empty without groups."""
        return {
            group: [name for name, number in zip(self.classes, self.group_of or (), strict=True) if number == place]
            for place, group in enumerate(self.group_names)
        }

    def items(self) -> Items:
        """Samples for `mhex.evaluate`: ``image`` or ``text``, and ``label``, ``mask``, ``rationale`` where known."""
        return Items(len(self), self._item)

    def _item(self, row: int) -> dict[str, Any]:
        raise NotImplementedError

    def _label(self, row: int) -> int:
        number = int(self.labels[row])
        return ClassLabel(number, self.classes) if self.by_name else number


@dataclass(frozen=True, eq=False, kw_only=True)
class PhotoSet(LabelledSet):
    """One split of images. Labels are (N, C), 0 or 1, where an image may have several classes."""

    images: PhotoRows  # N images, decoded when they are taken: (B, 3, H, W), uint8
    names: tuple[str, ...] = field(repr=False)  # name of each image
    masks: PhotoRows | None = None  # where objects are, rows (B, H, W) with values as in `mask`

    def mask(self, row: int) -> Tensor | None:
        """Where the object of an image is, (H, W), int64: 1 there, 0 elsewhere, -1 to be ignored; None if not known."""
        return None if self.masks is None else self.masks[torch.tensor([row])][0].long()

    def _item(self, row: int) -> dict[str, Any]:
        item: dict[str, Any] = {"image": photo_at(self.images, row)}
        if self.labels.dim() == 1:
            item["label"] = self._label(row)
        mask = self.mask(row)
        return item if mask is None else {**item, "mask": mask}


@dataclass(frozen=True, eq=False, kw_only=True)
class ImageSet(PhotoSet):
    """One split of images in memory."""

    images: Tensor  # (N, 3, H, W), uint8


@dataclass(frozen=True, eq=False, kw_only=True)
class TwoClassSet(PhotoSet):
    """Photos that show things of several classes."""

    second_labels: Tensor  # a second class of each photo, (N,), int64, `other` of its item; -1 where there is none
    present: tuple[tuple[int, ...], ...] = field(repr=False)  # all classes of each photo

    def _item(self, row: int) -> dict[str, Any]:
        return {**super()._item(row), "other": int(self.second_labels[row])}


@dataclass(frozen=True, eq=False, kw_only=True)
class TextSet(LabelledSet):
    """One split of a collection of texts."""

    texts: tuple[str, ...] = field(repr=False)  # N strings
    # For each text the words, counted from 0 and split at white space, that people marked as the reason for its class:
    # spans (first, last + 1), rising. None where nobody marked any.
    rationales: tuple[tuple[tuple[int, int], ...], ...] | None = field(default=None, repr=False)

    def marked(self, row: int) -> Tensor | None:
        """Which words of a text people marked, (words,), bool; None where nobody marked any text."""
        if self.rationales is None:
            return None
        words = torch.zeros(len(self.texts[row].split()), dtype=torch.bool)
        for first, end in self.rationales[row]:
            words[first:end] = True
        return words

    def _item(self, row: int) -> dict[str, Any]:
        item: dict[str, Any] = {"text": self.texts[row], "label": self._label(row)}
        marked = self.marked(row)
        return item if marked is None else {**item, "rationale": marked.nonzero()[:, 0].tolist()}


@dataclass(frozen=True, eq=False, kw_only=True)
class ValueSet:
    """One split of a collection of images with measured values instead of classes, for regression."""

    images: Tensor | PhotoRows  # N images, taken like rows of a tensor: (B, 3, H, W), uint8
    values: Tensor  # (N, K), float32
    value_names: tuple[str, ...]  # what the K values are
    split: str  # the split that was asked for
    names: tuple[str, ...] = field(repr=False)  # name of each image

    def __len__(self) -> int:
        return len(self.values)

    def items(self) -> Items:
        """The images for `mhex.evaluate`: ``image`` alone, since an output by its number is explained."""
        return Items(len(self), lambda row: {"image": photo_at(self.images, row)})


@dataclass(frozen=True, eq=False, kw_only=True)
class SegmentationSet:
    """Photos with a class for every pixel."""

    images: Tensor | PhotoRows  # N photos, taken like rows of a tensor: (B, 3, H, W), uint8
    maps: Tensor | PhotoRows  # class of each pixel, taken likewise: (B, H, W), uint8, a place in `classes` or 255
    classes: tuple[str, ...]  # their names
    split: str  # the split that was asked for
    names: tuple[str, ...] = field(repr=False)  # name of each photo
    background: int | None = None  # the class that is no object; None where every class is one

    def __len__(self) -> int:
        return len(self.names)

    def present(self) -> list[list[int]]:
        """The classes of each photo except the background, the largest first; reads all maps once."""
        classes = []
        for start in range(0, len(self), 64):
            for values in self.maps[torch.arange(start, min(start + 64, len(self)))]:
                counts = torch.bincount(values.flatten().long(), minlength=VOID + 1)[: len(self.classes)]
                order = counts.argsort(descending=True, stable=True).tolist()
                classes.append([place for place in order if counts[place] and place != self.background])
        return classes

    def items(self, of: str | None = None, *, labels: Sequence[str] | None = None) -> Items:
        """The photos for `mhex.evaluate`.

        Args:
            of: None marks all objects of a photo, without a label; the name of a class takes the photos that show it
                and marks it; ``"each"`` makes an item of every class of every photo, with another class of the photo
                as ``other`` (-1 for none).
            labels: Class names of the model, so that ``label`` and ``other`` are its numbers; classes that it does not
                know are left out. By default they are places in ``classes``.

        Returns:
            Items with ``image``, ``mask`` (1 at the object, 0 elsewhere, -1 where a pixel has no class), ``label``.
        """
        if of is None:
            if self.background is None:
                raise ArgumentError(
                    "Every pixel belongs to an object here: give of= the name of a class, such as "
                    f"{self.classes[-1]!r}, or 'each'."
                )
            return Items(len(self), partial(self._item, place=self.background, inverse=True))
        if of != "each" and of not in self.classes:
            raise unknown_name("class", of, (*self.classes, "each"))
        numbers = {name: place for place, name in enumerate(self.classes if labels is None else labels)}
        pairs = []
        for row, places in enumerate(self.present()):
            places = [place for place in places if self.classes[place] in numbers]
            for place in places:
                if of in ("each", self.classes[place]):
                    second = next((numbers[self.classes[second]] for second in places if second != place), -1)
                    extra = {"other": second} if of == "each" else {}
                    pairs.append((row, place, {"label": numbers[self.classes[place]], **extra}))
        return Items(len(pairs), lambda number: self._item(*pairs[number][:2]) | pairs[number][2])

    def _item(self, row: int, place: int, inverse: bool = False) -> dict[str, Any]:
        """A photo with the mask of a class, or of everything but it."""
        values = self.maps[torch.tensor([row])][0].long()
        mask = (values != place) if inverse else (values == place)
        return {"image": photo_at(self.images, row), "mask": mask.long().masked_fill(values == VOID, -1)}


def two_class_items(photos: PhotoSet, form: Form, *, limit: int | None = None, seed: int = 0) -> Items:
    """Pictures of two classes for `mhex.evaluate`, made of photos with one class each, which are used once at most.

    The classes are of two groups where there are groups, such as a breed of cats and one of dogs.

    Args:
        photos: With one class each.
        form: `"side-by-side"`: the middle halves of two photos; `"mosaic"`: 2 x 2 whole photos, two of each class.
        limit: At most so many pictures.
        seed: Decides which photos come together, and where.

    Returns:
        Items with ``image``, the two classes ``label`` and ``other``, and of mosaics ``tiles``, classes row by row.
    """
    if photos.labels.dim() != 1:
        raise ArgumentError("Expected photos with one class each for pictures of two classes, but they have several.")
    generator = torch.Generator().manual_seed(seed % 2**63)
    labels: list[int] = photos.labels.tolist()
    mixed = torch.randperm(len(labels), generator=generator).tolist()
    groups: dict[int, list[Unit]] = {}
    for unit in _class_pairs(mixed, labels) if form == "mosaic" else [(row,) for row in mixed]:
        label = labels[unit[0]]
        groups.setdefault(label if photos.group_of is None else photos.group_of[label], []).append(unit)
    pairs = _partners(list(groups.values()), limit)
    if not pairs:
        raise ArgumentError(
            f"Expected photos of two groups of classes for {form} pictures, but there are {len(groups)} with enough "
            "of them."
        )
    orders = [torch.randperm(len(first + second), generator=generator).tolist() for first, second in pairs]

    def take(number: int) -> dict[str, Any]:
        first, second = pairs[number]
        rows = [(first + second)[place] for place in orders[number]]
        cells = [photo_at(photos.images, row) for row in rows]
        item = {"image": _picture(cells), "label": labels[first[0]], "other": labels[second[0]]}
        return item if form == "side-by-side" else {**item, "tiles": [labels[row] for row in rows]}

    return Items(len(pairs), take)


def _class_pairs(rows: Sequence[int], labels: Sequence[int]) -> Iterator[Unit]:
    """Pairs of rows of the same class, in the order in which they become complete."""
    waiting: dict[int, int] = {}
    for row in rows:
        if labels[row] in waiting:
            yield waiting.pop(labels[row]), row
        else:
            waiting[labels[row]] = row


def _partners(groups: list[list[Unit]], limit: int | None) -> list[tuple[Unit, Unit]]:
    """Pairs of units of two groups; the largest groups come first, so that there are many pairs."""
    pairs: list[tuple[Unit, Unit]] = []
    while limit is None or len(pairs) < limit:
        groups = sorted((group for group in groups if group), key=lambda group: (-len(group), group[0]))
        if len(groups) < 2:
            break
        first, second = groups[0].pop(0), groups[1].pop(0)
        pairs.append((first, second) if len(pairs) % 2 == 0 else (second, first))  # either may give the label
    return pairs


def _picture(photos: Sequence[Image.Image]) -> Image.Image:
    """The middle halves of two photos beside each other, or four photos row by row, at the size of the first."""
    width, height = photos[0].size
    resized = [photo.resize((width, height)) for photo in photos]
    if len(photos) > 2:
        picture = Image.new("RGB", (2 * width, 2 * height))
        for place, photo in enumerate(resized):
            picture.paste(photo, (place % 2 * width, place // 2 * height))
        return picture
    picture, middle = Image.new("RGB", (width, height)), width // 2
    for photo, begin, part in zip(resized, (0, middle), (middle, width - middle), strict=True):
        edge = (width - part) // 2
        picture.paste(photo.crop((edge, 0, edge + part, height)), (begin, 0))
    return picture
