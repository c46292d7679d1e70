"""Samples one by one, in the form that `mhex.evaluate` takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, overload

import torch
from PIL import Image
from torch import Tensor

from mhex.data.photo_files import PhotoRows


class Items(Sequence[dict[str, Any]]):
    """Dictionaries that are made when they are taken, so that a large collection is never in memory at once.

    Keys are those of `mhex.evaluate`: ``image`` (a photo) or ``text``, and beside it ``label``, ``mask``,
    ``rationale`` or ``other``. All items of a collection have the same keys.

    Args:
        count: How many.
        take: From a place 0..count-1 to the dictionary.
    """

    def __init__(self, count: int, take: Callable[[int], dict[str, Any]]) -> None:
        self._count = count
        self._take = take

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, place: int) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, place: slice) -> Items: ...

    def __getitem__(self, place: int | slice) -> dict[str, Any] | Items:
        if isinstance(place, slice):
            chosen = range(self._count)[place]
            return Items(len(chosen), lambda inner: self._take(chosen[inner]))
        if not -self._count <= place < self._count:
            raise IndexError(f"There are {self._count} items, and number {place} was asked for.")
        return self._take(place % self._count)


def one_photo(images: Tensor | PhotoRows, row: int) -> Image.Image:
    """One row of images (N, 3, H, W), uint8, as a photo."""
    pixels = images[torch.tensor([row])][0]
    return Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())
