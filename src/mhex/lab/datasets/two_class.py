"""Pictures of two classes, composed of photos of one class each, to ask whether a map of one class avoids the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from PIL import Image

from mhex.errors import ArgumentError
from mhex.lab.datasets.sets import ImageSet, Items, PhotoSet, photo_at

Form = Literal["side-by-side", "mosaic"]
Unit = tuple[int, ...]  # rows of photos of one class that go into one picture


def two_class_items(photos: ImageSet | PhotoSet, form: Form, *, limit: int | None = None, seed: int = 0) -> Items:
    """Pictures of two classes for `mhex.evaluate`, each photo used once at most.

    The classes are of two groups where there are groups, such as a breed of cats and one of dogs.

    Args:
        photos: With one class each.
        form: `"side-by-side"`: the middle halves of two photos, so that sizes and proportions stay as they were.
            `"mosaic"`: 2 x 2 whole photos, two of each class.
        limit: At most so many pictures.
        seed: Decides which photos come together, and where.

    Returns:
        Items with ``image``, ``label`` and ``other``, the two classes; of mosaics also ``tiles``, the class of each
        cell, row by row.

    Raises:
        ArgumentError: The photos do not have two groups, or two classes, to be put together.
    """
    if photos.labels.dim() != 1:
        raise ArgumentError("Expected photos with one class each for pictures of two classes, but they have several.")
    generator = torch.Generator().manual_seed(seed)
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


def _class_pairs(rows: Sequence[int], labels: Sequence[int]) -> list[Unit]:
    """Pairs of rows of the same class, in the order in which they become complete."""
    waiting: dict[int, int] = {}
    pairs: list[Unit] = []
    for row in rows:
        if labels[row] in waiting:
            pairs.append((waiting.pop(labels[row]), row))
        else:
            waiting[labels[row]] = row
    return pairs


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
