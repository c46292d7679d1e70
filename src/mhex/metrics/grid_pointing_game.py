"""Grid pointing game: in a mosaic of several classes, does the map for a class stay in its cell?"""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mhex._settings import check_seed, check_that
from mhex.errors import ArgumentError
from mhex.metrics import Case, JudgedMaps, PerImage, Protocol, register_metric
from mhex.perturb import Subject, check_images, check_map, generator_for

_MOSAIC = 60  # purpose of random numbers


@dataclass(frozen=True, eq=False)
class Mosaics:
    """Images of n x n cells."""

    pixels: Tensor  # (M, C, H, W), normalised as the images were
    tiles: Tensor  # class of each cell, (M, n * n), row by row
    members: Tensor  # number in the data set of the image in each cell, (M, n * n)

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
    check_images(subject)
    divides = n >= 2 and each >= 1 and n * n % each == 0 and n * n != each
    expectation = "n of at least 2 and a number of images per class that divides n * n and is below it"
    check_that(divides, expectation, f"n={n} and each={each}")
    height, width = subject.batch.pixels.shape[-2:]
    fits = not shrink or not (height % n or width % n)
    advice = "; choose another n, or shrink=False"
    check_that(fits, f"images whose sides are multiples of {n}", f"{height}x{width}", advice)
    if subject.label is None:
        raise ArgumentError("Expected labels of the images for mosaics; give label=.")
    sure = (subject.probabilities(subject.logits, subject.label[:, None]) >= least)[:, 0]
    places = (sure & (subject.predicted == subject.label)).nonzero()[:, 0].tolist()
    groups = _groups(places, subject.ids, subject.label.tolist(), n * n, each, check_seed("seed", seed))
    expectation = f"{each} images of each of {n * n // each} classes that are right with probability {least:g}"
    check_that(bool(groups), expectation, "fewer", "; give more images or a lower least")
    rows = torch.tensor(groups, device=subject.device)
    pixels = subject.batch.pixels[rows.flatten()]
    if shrink:
        pixels = F.interpolate(pixels, size=(height // n, width // n), mode="bilinear", antialias=True)
    cells = pixels.view(len(rows), n, n, *pixels.shape[1:])
    laid = cells.permute(0, 3, 1, 4, 2, 5).flatten(4).flatten(2, 3)
    members = torch.tensor(subject.ids, device=subject.device)[rows]
    return Mosaics(laid.contiguous(), subject.label[rows], members)


def _groups(sure: list[int], ids: list[int], label: list[int], cells: int, each: int, seed: int) -> list[list[int]]:
    """Places of the images of each mosaic. Classes with the most images come first, so that there are many mosaics."""
    # Of each image a number that chooses it, and another for its cell: the cell says nothing of how common a class is.
    draw = {i: torch.rand(2, generator=generator_for(seed, ids[i], _MOSAIC)).tolist() for i in sure}
    by_class: dict[int, list[int]] = {}
    for place in sorted(sure, key=lambda i: (draw[i][0], ids[i])):
        by_class.setdefault(label[place], []).append(place)
    groups: list[list[int]] = []
    while True:
        ready = [members for members in by_class.values() if len(members) >= each]
        ready.sort(key=lambda members: (-len(members), draw[members[0]][0]))
        if len(ready) < cells // each:
            return groups
        group = [members.pop(0) for members in ready[: cells // each] for _ in range(each)]
        groups.append(sorted(group, key=lambda i: (draw[i][1], ids[i])))


def grid_pointing_game(saliency: Tensor, cells: Tensor) -> Tensor:
    """Share of the positive part of a map that is in the right cells, (B,); NaN without anything above 0.

    Scores are not enlarged, so nothing bleeds over a border; where a border cuts through a unit of the map, it counts
    on both sides by area.

    Args:
        saliency: Maps (B, h, w) of mosaics.
        cells: Bool (B, n * n), True at cells of the explained class, row by row.
    """
    n = math.isqrt(cells.shape[-1]) if cells.dim() == 2 else 0
    right = saliency.dim() == 3 and len(saliency) == len(cells) and n * n == cells.shape[-1]
    shapes = f"{tuple(saliency.shape)} and {tuple(cells.shape)}"
    check_that(right, "maps (B, h, w) and cells (B, n * n)", shapes)
    check_that(bool(saliency.isfinite().all()), "finite maps", "NaN or infinity")
    energy = saliency.double().clamp_min(0)
    rows, columns = (_overlap(size, n, energy) for size in energy.shape[-2:])
    mass = (rows @ energy @ columns.mT).flatten(1)
    total = mass.sum(1)
    inside = (mass * cells.to(mass)).sum(1)
    return (inside / total).masked_fill(total == 0, torch.nan)


def _overlap(size: int, n: int, like: Tensor) -> Tensor:
    """How much of each of `size` units is in each of `n` equal parts of the same length, (n, size)."""
    begin = torch.arange(size, device=like.device, dtype=like.dtype)
    part = torch.arange(n, device=like.device, dtype=like.dtype)[:, None] * (size / n)
    return (torch.minimum(begin + 1, part + size / n) - torch.maximum(begin, part)).clamp_min(0)


@register_metric(
    "grid-pointing-game",
    function=grid_pointing_game,
    title="In a mosaic of several classes, does the map for a class stay in its cell?",
    paper="Boehle, Fritz & Schiele, CVPR 2021, arXiv:2104.00032; Arias-Duart et al., Focus, 2022, arXiv:2109.15035",
    passes="n^2 E",
    traps="Needs mosaics (`mosaics` of this file) and explains each of their classes. By chance it is one over the "
    "number of cells. A model that finds one class in the cell of another is told of as a wrong map. Cells without "
    "anything above 0 do not count (`silent`).",
    modalities=("image",),
    data=("tiles",),
    explains=True,
    presets={"default": Protocol()},
)
class GridPointingGame(PerImage):
    """Mean over the cells of a mosaic (higher is better), and the share of cells whose map says nothing."""

    columns = ("value", "silent")
    better = (True, None)
    skips = "maps with nothing above 0"

    def of(self, case: Case) -> tuple[Any, ...]:
        """A map for the class of each cell; the one that is there already is taken for its cell."""
        tiles = case.needs("tiles", "mosaics with the class of each cell (see `mhex.metrics.grid_pointing_game`)")
        tiles = tiles.to(case.subject.device)
        maps = []
        for classes in tiles.unbind(1):
            if case.explained is not None and torch.equal(classes, case.explained.to(classes)):
                saliency = case.saliency
            else:
                again = case.needs("again", "a way to explain other classes (again=)")
                saliency = again(case.subject.batch.pixels, classes)
            maps.append(check_map(case.subject, saliency))
        return (JudgedMaps(tuple(case.ids), torch.stack(maps, 1), tiles),)

    def score(self, result: JudgedMaps) -> Tensor:
        right = result.truth[:, :, None] == result.truth[:, None]  # the cells of each cell's class
        cells = result.truth.shape[1]
        values = grid_pointing_game(result.saliency.flatten(0, 1), right.flatten(0, 1)).view(-1, cells)
        return torch.stack([values.nanmean(1), values.isnan().double().mean(1)], 1)
