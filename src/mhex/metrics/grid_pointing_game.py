"""Grid pointing game: in a mosaic of several classes, does the map for a class stay in its cell?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mhex.errors import ArgumentError
from mhex.metrics._base import PerImage
from mhex.metrics.case import Case
from mhex.metrics.protocols import Protocol
from mhex.metrics.registry import register_metric
from mhex.perturb import check_map


@dataclass(frozen=True, eq=False)
class GridMaps:
    """Maps of mosaics, one for the class of each cell.

    Attributes:
        ids: Number of each mosaic.
        saliency: At their own resolution, (B, n * n, h, w).
        tiles: Class of each cell, (B, n * n), row by row.
    """

    ids: tuple[int, ...]
    saliency: Tensor
    tiles: Tensor


def grid_pointing_game(saliency: Tensor, cells: Tensor) -> Tensor:
    """Share of the positive part of a map that is in the right cells, (B,); NaN without anything above 0.

    Scores are not enlarged, so nothing bleeds over a border; where a border cuts through a unit of the map, it counts
    on both sides by area.

    Args:
        saliency: Maps (B, h, w) of mosaics.
        cells: Bool (B, n * n), True at cells of the explained class, row by row.
    """
    n = math.isqrt(cells.shape[-1]) if cells.dim() == 2 else 0
    if saliency.dim() != 3 or len(saliency) != len(cells) or n * n != cells.shape[-1]:
        raise ArgumentError(
            f"Expected maps (B, h, w) and cells (B, n * n), but got {tuple(saliency.shape)} and {tuple(cells.shape)}."
        )
    if not bool(saliency.isfinite().all()):
        raise ArgumentError("Expected finite maps, but got NaN or infinity.")
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
    traps="Needs mosaics (`mhex.perturb.mosaics`) and explains each of their classes. By chance it is one over the "
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
    outputs = ("value", "silent")
    better = (True, None)
    protocol: Protocol

    def of(self, case: Case) -> tuple[Any, ...]:
        """A map for the class of each cell; the one that is there already is taken for its cell."""
        tiles = case.needs("tiles", "mosaics with the class of each cell (see `mhex.perturb.mosaics`)").to(
            case.subject.device
        )
        maps = []
        for classes in tiles.unbind(1):
            if case.explained is not None and torch.equal(classes, case.explained.to(classes)):
                found = case.saliency
            else:
                again = case.needs("again", "a way to explain other classes (again=)")
                found = again(case.subject.batch.pixels, classes)
            maps.append(check_map(case.subject, found))
        return (GridMaps(tuple(case.ids), torch.stack(maps, 1), tiles),)

    def score(self, result: GridMaps) -> Tensor:
        """Per mosaic."""
        right = result.tiles[:, :, None] == result.tiles[:, None]  # the cells of each cell's class
        cells = result.tiles.shape[1]
        values = grid_pointing_game(result.saliency.flatten(0, 1), right.flatten(0, 1)).view(-1, cells)
        return torch.stack([values.nanmean(1), values.isnan().double().mean(1)], 1)
