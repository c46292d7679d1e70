"""Scenes of several objects on a textured ground, drawn in layers, so that any object can be left out exactly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from mhex._settings import check_that
from mhex.perturb import generator_for

CELLS = 3  # objects stand in the cells of a grid of so many rows and columns, at most one in each
SHAPES = ("disc", "square", "triangle", "cross", "ring", "bar", "diamond", "blob")
COLOURS = {
    "red": (0.85, 0.10, 0.10),
    "blue": (0.10, 0.20, 0.90),
    "green": (0.10, 0.70, 0.15),
    "yellow": (0.95, 0.85, 0.10),
    "white": (0.95, 0.95, 0.95),
    "black": (0.05, 0.05, 0.05),
    "violet": (0.60, 0.15, 0.75),
    "brown": (0.50, 0.30, 0.15),
}
_NUMBERS = 160  # random numbers of a scene for what stands in it
_COARSE, _FINE = 5, 24  # cells of the ground's colours, and of its grain
_CHUNK = 256  # scenes that are drawn at once


class SceneRandom:
    """Random numbers of scenes, which depend on the seed and on the number of each scene alone.

    Each method takes the next numbers of every scene; all tensors have a row for each scene.
    """

    def __init__(
        self, rows: Sequence[int], seed: int = 0, purpose: int = 0, device: torch.device | str = "cpu"
    ) -> None:
        count = _NUMBERS + 3 * _COARSE**2 + _FINE**2
        # On the CPU, as its generators are, whatever the default device is.
        sources = [generator_for(seed, row, purpose) for row in rows]
        draws = [torch.rand(count, generator=source, dtype=torch.float64, device="cpu") for source in sources]
        values = torch.stack(draws).to(device)
        self._numbers, ground = values[:, :_NUMBERS], values[:, _NUMBERS:]
        self.coarse = ground[:, : 3 * _COARSE**2].reshape(-1, 3, _COARSE, _COARSE)
        self.fine = ground[:, 3 * _COARSE**2 :].reshape(-1, 1, _FINE, _FINE)
        self._next = 0

    def __len__(self) -> int:
        return len(self._numbers)

    def uniform(self, count: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        """Numbers (N, count) from low to high."""
        self._next += count
        check_that(self._next <= _NUMBERS, f"at most {_NUMBERS} random numbers of a scene", self._next)
        return self._numbers[:, self._next - count : self._next] * (high - low) + low

    def choice(self, options: int, count: int = 1) -> Tensor:
        """Whole numbers (N, count) from 0 to options - 1."""
        return (self.uniform(count) * options).long().clamp_max(options - 1)

    def order(self, options: int, count: int | None = None) -> Tensor:
        """Different numbers (N, count) from 0 to options - 1, in a random order."""
        return self.uniform(options).argsort(1)[:, :count]


@dataclass(frozen=True)
class Scenes:
    """N scenes with places for K objects each; lengths are shares of the side."""

    shape: Tensor  # place in `SHAPES`, (N, K), int64
    colour: Tensor  # (N, K, 3), from 0 to 1
    across: Tensor  # middle of each object, (N, K)
    down: Tensor  # (N, K)
    radius: Tensor  # (N, K)
    angle: Tensor  # of stripes, (N, K), in radians
    stripes: Tensor  # stripes over the object, (N, K); 0 for none
    present: Tensor  # bool (N, K); False where a place is empty
    coarse: Tensor  # colours of the ground, (N, 3, c, c)
    fine: Tensor  # grain of the ground, (N, 1, f, f)

    def __len__(self) -> int:
        return len(self.shape)

    def take(self, rows: slice | Tensor | Sequence[int]) -> Scenes:
        """Some of the scenes."""
        return replace(self, **{entry.name: getattr(self, entry.name)[rows] for entry in fields(self)})

    @classmethod
    def joined(cls, parts: Sequence[Scenes]) -> Scenes:
        """The scenes of several, one after the other; they have as many places."""
        return cls(**{entry.name: torch.cat([getattr(part, entry.name) for part in parts]) for entry in fields(cls)})

    def without(self, objects: Tensor) -> Scenes:
        """The scenes without the objects where a mask, bool (N, K), is True."""
        return replace(self, present=self.present & ~objects)

    def images(self, side: int) -> Tensor:
        """The scenes, (N, 3, side, side), uint8."""
        parts = range(0, len(self), _CHUNK)
        return torch.cat([self.take(slice(start, start + _CHUNK))._draw(side) for start in parts])

    def masks(self, side: int) -> Tensor:
        """Where each object is, bool (N, K, side, side)."""
        return self._alpha(*self._places(side)) > 0

    def _places(self, side: int) -> tuple[Tensor, Tensor]:
        """Coordinates of the pixels in each object's radii, (N, K, 1, side) and (N, K, side, 1)."""
        pixels = (torch.arange(side, dtype=torch.float64, device=self.shape.device) + 0.5) / side
        across = (pixels - self.across[..., None]) / self.radius[..., None]
        down = (pixels - self.down[..., None]) / self.radius[..., None]
        return across[:, :, None, :], down[:, :, :, None]

    def _alpha(self, x: Tensor, y: Tensor) -> Tensor:
        """How much of each pixel an object covers, (N, K, side, side): 0 or 1, but at the soft edge of blobs."""
        distance = (x.square() + y.square()).sqrt()
        wide, high = x.abs(), y.abs()
        forms = (
            distance <= 0.9,
            torch.maximum(wide, high) <= 0.78,
            (y <= 0.75) & (y >= -0.95) & (wide <= (y + 0.95) * 0.55),
            (torch.minimum(wide, high) <= 0.3) & (torch.maximum(wide, high) <= 0.95),
            (distance <= 0.95) & (distance >= 0.5),
            (wide <= 0.95) & (high <= 0.35),
            wide + high <= 1.0,
            ((1 - distance) / 0.4).clamp(0, 1),
        )
        alpha = torch.zeros_like(distance)
        for number, form in enumerate(forms):
            alpha = torch.where((self.shape == number)[..., None, None], form.to(alpha), alpha)
        return alpha * self.present[..., None, None]

    def _draw(self, side: int) -> Tensor:
        ground = F.interpolate(self.coarse, size=(side, side), mode="bicubic", align_corners=False)
        grain = F.interpolate(self.fine, size=(side, side), mode="nearest")
        pixels = 0.3 + 0.35 * ground.clamp(0, 1) + 0.12 * (grain - 0.5)
        x, y = self._places(side)
        alpha = self._alpha(x, y)
        turn = self.angle[..., None, None]
        wave = torch.sin(math.pi * self.stripes[..., None, None] * (x * turn.cos() + y * turn.sin()))
        light = torch.where((self.stripes > 0)[..., None, None] & (wave < 0), 0.25, 1.0)
        for place in range(self.shape.shape[1]):
            cover = alpha[:, place, None]
            paint = self.colour[:, place, :, None, None] * light[:, place, None]
            pixels = pixels * (1 - cover) + paint * cover
        return (pixels * 255).round().clamp(0, 255).to(torch.uint8)


def place(
    draws: SceneRandom,
    shape: Tensor,
    colour: Tensor,
    *,
    cells: Tensor | None = None,
    radius: Tensor | tuple[float, float] = (0.10, 0.14),
    angle: Tensor | None = None,
    stripes: Tensor | None = None,
) -> Scenes:
    """Scenes of objects in different cells, which do not overlap.

    Args:
        draws: Random numbers of the scenes.
        shape: (N, K), places in `SHAPES`.
        colour: (N, K, 3).
        cells: Cell of each object, (N, K), row by row; random ones by default.
        radius: Of each object, (N, K), or from where to where; below 1 / (2 CELLS).
        angle: Of stripes, (N, K).
        stripes: How many of them lie over an object, (N, K).
    """
    count = shape.shape[1]
    cells = draws.order(CELLS**2, count) if cells is None else cells
    radius = radius if isinstance(radius, Tensor) else draws.uniform(count, *radius)
    room = 0.5 / CELLS - radius - 0.01
    across = (cells % CELLS + 0.5) / CELLS + draws.uniform(count, -1, 1) * room
    down = (cells // CELLS + 0.5) / CELLS + draws.uniform(count, -1, 1) * room
    zeros = torch.zeros_like(radius)
    return Scenes(
        shape=shape,
        colour=colour,
        across=across,
        down=down,
        radius=radius,
        angle=zeros if angle is None else angle,
        stripes=zeros if stripes is None else stripes,
        present=torch.ones_like(shape, dtype=torch.bool),
        coarse=draws.coarse,
        fine=draws.fine,
    )


def shape_numbers(*names: str) -> Tensor:
    """Places of shapes in `SHAPES`."""
    return torch.tensor([SHAPES.index(name) for name in names])


def paints(*names: str) -> Tensor:
    """Colours, (n, 3)."""
    return torch.tensor([COLOURS[name] for name in names], dtype=torch.float64)


def any_paint(draws: SceneRandom, count: int) -> Tensor:
    """Random colours of objects, (N, count, 3)."""
    return draws.uniform(3 * count).reshape(len(draws), count, 3)


def first_signs(draws: SceneRandom, objects: int, *signs: int) -> Tensor:
    """What construction says of objects, (N, objects): these signs of the first ones, and 0 of all others."""
    return torch.tensor([*signs, *[0] * (objects - len(signs))]).repeat(len(draws), 1)
