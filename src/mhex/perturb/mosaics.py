"""Mosaics of images whose classes are known and sure: a map for one class should stay in its cell."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mhex.errors import ArgumentError
from mhex.perturb.ranks import generator_for
from mhex.perturb.subject import Subject

_MOSAIC = 60  # purpose of random numbers


@dataclass(frozen=True, eq=False)
class Mosaics:
    """Images of n x n cells.

    Attributes:
        pixels: (M, C, H, W), normalised as the images were.
        tiles: Class of each cell, (M, n * n), row by row.
        members: Number in the data set of the image in each cell, (M, n * n).
    """

    pixels: Tensor
    tiles: Tensor
    members: Tensor

    def __len__(self) -> int:
        return len(self.pixels)


def mosaics(
    subject: Subject, n: int = 2, *, each: int = 1, least: float = 0.99, shrink: bool = True, seed: int = 0
) -> Mosaics:
    """As many mosaics as there are images for, each image used once at most.

    Args:
        subject: Images with labels. Those count that are classified correctly, alone, with enough probability.
        n: Cells on a side.
        each: Images of each class in a mosaic; the others are of other classes.
        least: That probability.
        shrink: Make each image smaller, so that the mosaic has the size of one image, as models with position
            embeddings need it; or lay them out as they are.
        seed: Of who comes together, and where. It does not depend on the order of the images.
    """
    if subject.batch.modality != "image":
        raise ArgumentError("Expected images for mosaics, but got texts.")
    if n < 2 or each < 1 or n * n % each or n * n == each:
        raise ArgumentError(
            f"Expected n of at least 2 and a number of images per class that divides n * n and is below it, but got "
            f"n={n} and each={each}."
        )
    height, width = subject.batch.pixels.shape[-2:]
    if shrink and (height % n or width % n):
        raise ArgumentError(
            f"Expected images whose sides are multiples of {n}, but got {height}x{width}; choose another n, or "
            "shrink=False."
        )
    if subject.label is None:
        raise ArgumentError("Expected labels of the images for mosaics; give label=.")
    groups = _groups(_sure(subject, subject.label, least), subject, subject.label, n * n, each, seed)
    if not groups:
        raise ArgumentError(
            f"Expected images of at least {n * n // each} classes, {each} of each, that are classified correctly with "
            f"probability {least:g}, but there are none for even one mosaic; give more images or a lower least."
        )
    rows = torch.tensor(groups, device=subject.device)
    pixels = subject.batch.pixels[rows.flatten()]
    if shrink:
        pixels = F.interpolate(pixels, size=(height // n, width // n), mode="bilinear", antialias=True)
    cells = pixels.view(len(rows), n, n, *pixels.shape[1:])
    laid = cells.permute(0, 3, 1, 4, 2, 5).flatten(4).flatten(2, 3)
    members = torch.tensor(subject.ids, device=subject.device)[rows]
    return Mosaics(laid.contiguous(), subject.label[rows], members)


def _sure(subject: Subject, label: Tensor, least: float) -> list[int]:
    """Places of the images that count."""
    sure = (subject.probabilities(subject.logits, label[:, None]) >= least)[:, 0]
    found: list[int] = (sure & (subject.predicted == label)).nonzero()[:, 0].tolist()
    return found


def _groups(sure: list[int], subject: Subject, label: Tensor, cells: int, each: int, seed: int) -> list[list[int]]:
    """Images of each mosaic. The classes with the most images left come first, so that there are many mosaics."""
    # Of each image a number that chooses it, and another for its cell: the cell says nothing of how common a class is.
    draw = {i: torch.rand(2, generator=generator_for(seed, subject.ids[i], _MOSAIC)).tolist() for i in sure}
    left: dict[int, list[int]] = {}
    for place in sorted(sure, key=lambda i: (draw[i][0], subject.ids[i])):
        left.setdefault(int(label[place]), []).append(place)
    groups: list[list[int]] = []
    while True:
        ready = [members for members in left.values() if len(members) >= each]
        ready.sort(key=lambda members: (-len(members), draw[members[0]][0]))
        if len(ready) < cells // each:
            return groups
        chosen = [members.pop(0) for members in ready[: cells // each] for _ in range(each)]
        groups.append(sorted(chosen, key=lambda i: (draw[i][1], subject.ids[i])))
