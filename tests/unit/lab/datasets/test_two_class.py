"""Pictures of two classes: who is in them, where, and that seeds decide."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mhex.errors import ArgumentError
from mhex.lab.datasets import ImageSet
from mhex.lab.datasets.sets import two_class_items


def photos(labels: list[int], groups: tuple[int, ...] | None) -> ImageSet:
    """A photo's colour is its place, from 10 on."""
    images = torch.stack([torch.full((3, 4, 6), 10 + place, dtype=torch.uint8) for place in range(len(labels))])
    classes = tuple(f"class {number}" for number in range(max(labels) + 1))
    names = tuple(map(str, labels))
    return ImageSet(
        images=images, labels=torch.tensor(labels), classes=classes, split="test", names=names, group_of=groups
    )


LABELS = [0, 0, 0, 0, 1, 1, 2, 2, 2, 2, 3, 3]
GROUPS = (0, 0, 1, 1)


def colours(image: object) -> list[int]:
    """Colours of the four quarters, row by row."""
    pixels = np.asarray(image)[..., 0]
    height, width = pixels.shape
    return [int(pixels[row, column]) for row in (0, height - 1) for column in (0, width - 1)]


def test_halves_are_of_two_groups() -> None:
    items = two_class_items(photos(LABELS, GROUPS), "side-by-side", seed=1)
    assert len(items) == 6
    used = []
    for item in items:
        assert item["image"].size == (6, 4)
        left, right = colours(item["image"])[:2]
        assert {LABELS[left - 10], LABELS[right - 10]} == {item["label"], item["other"]}
        assert GROUPS[item["label"]] != GROUPS[item["other"]]
        used += [left, right]
    assert len(set(used)) == 12  # each photo once
    assert {GROUPS[item["label"]] for item in items} == {0, 1}


def test_mosaics_have_two_cells_of_each_class() -> None:
    items = two_class_items(photos(LABELS, GROUPS), "mosaic", seed=1)
    assert len(items) == 3
    for item in items:
        assert item["image"].size == (12, 8)
        cells = colours(item["image"])
        assert [LABELS[cell - 10] for cell in cells] == item["tiles"]
        assert sorted(item["tiles"]) == sorted([item["label"], item["other"]] * 2)
        assert len(set(cells)) == 4


def test_seed_and_limit() -> None:
    def made(seed: int, limit: int | None) -> list[list[int]]:
        items = two_class_items(photos(LABELS, GROUPS), "side-by-side", limit=limit, seed=seed)
        return [colours(item["image"]) for item in items]

    assert made(1, None) == made(1, None) != made(2, None)
    assert made(1, 2) == made(1, None)[:2]


def test_without_groups_classes_differ_and_one_group_is_refused() -> None:
    items = two_class_items(photos(LABELS, None), "side-by-side")
    assert all(item["label"] != item["other"] for item in items)
    with pytest.raises(ArgumentError, match="photos of two groups"):
        two_class_items(photos(LABELS, (0, 0, 0, 0)), "mosaic")
