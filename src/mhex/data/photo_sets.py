"""Sets of photos in files: with a class each, with two classes each, and with a class for every pixel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mhex.data.items import Items, one_photo
from mhex.data.photo_files import PhotoRows
from mhex.errors import ArgumentError, unknown_name

VOID = 255  # in maps of classes: a pixel that has no class


@dataclass(frozen=True, eq=False, kw_only=True)
class PhotoSet:
    """One split of a folder of photos; like `ImageSet`, with the photos decoded when they are taken.

    Attributes:
        images: N photos.
        labels: Class of each photo, (N,), int64, a place in ``classes``.
        classes: Names of the classes.
        split: The split that was asked for.
        names: Name of each photo.
        masks: Where the objects are, taken like rows of a tensor: (B, H, W), 1 there, 0 elsewhere, -1 to be ignored;
            None if not known.
        group_of: Always None: classes have no groups.
    """

    images: PhotoRows
    labels: Tensor
    classes: tuple[str, ...]
    split: str
    names: tuple[str, ...] = field(repr=False)
    masks: PhotoRows | None = None
    group_of: tuple[int, ...] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def items(self) -> Items:
        """The photos for `mhex.evaluate`: ``image``, ``label``, and ``mask`` where known."""
        return Items(len(self), self._item)

    def _item(self, row: int) -> dict[str, Any]:
        item: dict[str, Any] = {"image": one_photo(self.images, row), "label": int(self.labels[row])}
        return item if self.masks is None else {**item, "mask": self.masks[torch.tensor([row])][0].long()}


@dataclass(frozen=True, eq=False, kw_only=True)
class TwoClassSet(PhotoSet):
    """Photos that show things of several classes.

    Attributes:
        others: A second class of each photo, (N,), int64; -1 where there is none.
        present: All classes of each photo.
    """

    others: Tensor
    present: tuple[tuple[int, ...], ...] = field(repr=False)

    def _item(self, row: int) -> dict[str, Any]:
        return {**super()._item(row), "other": int(self.others[row])}


@dataclass(frozen=True, eq=False, kw_only=True)
class SegmentationSet:
    """Photos with a class for every pixel.

    Attributes:
        images: N photos, taken like rows of a tensor: (B, 3, H, W), uint8.
        maps: Class of each pixel, taken likewise: (B, H, W), uint8, a place in ``classes``, or 255 for none.
        classes: Names of the classes.
        background: The class that is no object; None where every class is one.
        split: The split that was asked for.
        names: Name of each photo.
    """

    images: Tensor | PhotoRows
    maps: Tensor | PhotoRows
    classes: tuple[str, ...]
    split: str
    names: tuple[str, ...] = field(repr=False)
    background: int | None = None

    def __len__(self) -> int:
        return len(self.names)

    def present(self) -> list[list[int]]:
        """The classes of each photo, the background left out, the largest first; reads all maps once."""
        found = []
        for start in range(0, len(self), 64):
            rows = torch.arange(start, min(start + 64, len(self)))
            for one in self.maps[rows]:
                counts = torch.bincount(one.flatten().long(), minlength=VOID + 1)[: len(self.classes)]
                order = counts.argsort(descending=True, stable=True).tolist()
                found.append([place for place in order if counts[place] and place != self.background])
        return found

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

        Raises:
            ArgumentError: The class is unknown, or all objects are asked for where every class is one.
        """
        if of is None:
            if self.background is None:
                raise ArgumentError(
                    "Every pixel belongs to an object here: give of= the name of a class, such as "
                    f"{self.classes[-1]!r}, or 'each'."
                )
            return Items(len(self), partial(self._all_objects, self.background))
        if of != "each" and of not in self.classes:
            raise unknown_name("class", of, (*self.classes, "each"))
        known = {name: place for place, name in enumerate(self.classes if labels is None else labels)}
        pairs = []
        for row, places in enumerate(self.present()):
            told = [place for place in places if self.classes[place] in known]
            for place in told:
                if of in ("each", self.classes[place]):
                    other = next((known[self.classes[one]] for one in told if one != place), -1)
                    pairs.append((row, place, known[self.classes[place]], other))

        def take(number: int) -> dict[str, Any]:
            row, place, label, other = pairs[number]
            values = self.maps[torch.tensor([row])][0].long()
            mask = (values == place).long().masked_fill(values == VOID, -1)
            item = {"image": one_photo(self.images, row), "label": label, "mask": mask}
            return {**item, "other": other} if of == "each" else item

        return Items(len(pairs), take)

    def _all_objects(self, background: int, row: int) -> dict[str, Any]:
        values = self.maps[torch.tensor([row])][0].long()
        mask = (values != background).long().masked_fill(values == VOID, -1)
        return {"image": one_photo(self.images, row), "mask": mask}
