"""Pictures of two classes, made of photos of one each, to ask whether a map of one class leaves the other alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from PIL import Image

from mhex.errors import ArgumentError
from mhex.lab.datasets.photo_files import Items, PhotoSet, one_photo
from mhex.lab.datasets.sets import ImageSet

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
        seed: Of who comes together, and where.

    Returns:
        Items with ``image``, ``label`` and ``other``, the two classes; of mosaics also ``tiles``, the class of each
        cell, row by row.

    Raises:
        ArgumentError: The photos do not have two groups, or two classes, to be put together.
    """
    if photos.labels.dim() != 1:
        raise ArgumentError("Expected photos with one class each for pictures of two classes, but they have several.")
    generator = torch.Generator().manual_seed(seed)
    labels = photos.labels.tolist()
    mixed = torch.randperm(len(labels), generator=generator).tolist()
    units = _pairs_of_a_class(mixed, labels) if form == "mosaic" else [(row,) for row in mixed]
    groups: dict[int, list[Unit]] = {}
    for unit in units:
        label = labels[unit[0]]
        groups.setdefault(label if photos.group_of is None else photos.group_of[label], []).append(unit)
    chosen = _partners(list(groups.values()), limit)
    if not chosen:
        raise ArgumentError(
            f"Expected photos of two groups of classes for {form} pictures, but there are {len(groups)} with enough "
            "of them."
        )
    places = [_order(len(first + second), generator) for first, second in chosen]

    def take(number: int) -> dict[str, Any]:
        first, second = chosen[number]
        rows = [(first + second)[place] for place in places[number]]
        cells = [one_photo(photos.images, row) for row in rows]
        item = {"label": labels[first[0]], "other": labels[second[0]]}
        if form == "side-by-side":
            return {"image": _halves(cells), **item}
        return {"image": _grid(cells), **item, "tiles": [labels[row] for row in rows]}

    return Items(len(chosen), take)


def _pairs_of_a_class(rows: Sequence[int], labels: Sequence[int]) -> list[Unit]:
    waiting: dict[int, int] = {}
    found: list[Unit] = []
    for row in rows:
        if labels[row] in waiting:
            found.append((waiting.pop(labels[row]), row))
        else:
            waiting[labels[row]] = row
    return found


def _partners(groups: list[list[Unit]], limit: int | None) -> list[tuple[Unit, Unit]]:
    """Units of two groups each; the largest groups come first, so that there are many. Either may be the label's."""
    left = [list(group) for group in groups]
    found: list[tuple[Unit, Unit]] = []
    while limit is None or len(found) < limit:
        left = sorted((group for group in left if group), key=lambda group: (-len(group), group[0]))
        if len(left) < 2:
            break
        pair = left[0].pop(0), left[1].pop(0)
        found.append(pair if len(found) % 2 == 0 else (pair[1], pair[0]))
    return found


def _order(count: int, generator: torch.Generator) -> list[int]:
    return [int(place) for place in torch.randperm(count, generator=generator)]


def _halves(photos: Sequence[Image.Image]) -> Image.Image:
    """The middle halves of two photos, the first one on the left, at the size of the first."""
    width, height = photos[0].size
    picture, begin = Image.new("RGB", (width, height)), 0
    for photo, part in zip(photos, (width // 2, width - width // 2), strict=True):
        photo = photo if photo.size == (width, height) else photo.resize((width, height))
        edge = (width - part) // 2
        picture.paste(photo.crop((edge, 0, edge + part, height)), (begin, 0))
        begin += part
    return picture


def _grid(photos: Sequence[Image.Image]) -> Image.Image:
    """Four photos, row by row, each at the size of the first."""
    width, height = photos[0].size
    picture = Image.new("RGB", (2 * width, 2 * height))
    for place, photo in enumerate(photos):
        photo = photo if photo.size == (width, height) else photo.resize((width, height))
        picture.paste(photo, (place % 2 * width, place // 2 * height))
    return picture
