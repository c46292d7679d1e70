"""Box sensitivity: does the sum of the map in a box say how much the model loses without it?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mhex.capture import Batch
from mhex.errors import ArgumentError
from mhex.metrics._base import PerImage
from mhex.metrics.case import Case
from mhex.metrics.drops import Drops, drops_of
from mhex.metrics.protocols import Protocol, blur_only
from mhex.metrics.registry import register_metric
from mhex.perturb.references import PIXELS
from mhex.perturb.subject import Runner, Subject
from mhex.perturb.units import at_size, check_maps, generator_for
from mhex.stats.correlation import correlation

_BOXES = 1000  # purpose of random numbers, to which the side is added


@dataclass(frozen=True)
class BoxResult:
    """What went with each box.

    Attributes:
        sweep: How boxes were drawn.
        image: Height and width of the images.
        sizes: On the axis of the area, (S,): pixels, or cells of the grid.
        sides: Sides of the boxes in pixels, (S,).
        corners: Top and left of each, (B, S, n, 2).
        drops: What the scores lost, with S n changes for each sample.
    """

    sweep: BoxSweep
    image: tuple[int, int]
    sizes: tuple[int, ...]
    sides: tuple[int, ...]
    corners: Tensor
    drops: Drops

    @property
    def runner(self) -> BoxSweep:
        """How boxes were drawn."""
        return self.sweep

    @property
    def ids(self) -> tuple[int, ...]:
        return self.drops.ids

    def lost(self, classes: Tensor | None = None) -> Tensor:
        """`z_c(x) - z_c(x without the box)` of one class of each sample, (B, S, n)."""
        return self.drops.of(classes).view(len(self.ids), len(self.sizes), self.sweep.count)

    def sums(self, saliency: Tensor) -> Tensor:
        """Sums of maps (B, h, w), brought to the size of the image, over each box: (B, S, n), float64."""
        maps = check_maps(saliency, len(self.ids), self.image).to(self.corners.device)
        maps = at_size(maps.double(), self.image)
        if self.sweep.shape == "pixels":
            return self._scattered_sums(maps)
        # One row and one column of zeros first: the sum of a box is then four look-ups.
        integral = F.pad(maps.cumsum(1).cumsum(2), (1, 0, 1, 0)).flatten(1)
        side = torch.tensor(self.sides, device=maps.device)[:, None]
        top, left = self.corners.unbind(-1)

        def at(row: Tensor, column: Tensor) -> Tensor:
            return integral.gather(1, (row * (self.image[1] + 1) + column).flatten(1)).view(top.shape)

        below, right = top + side, left + side
        return at(below, right) - at(top, right) - at(below, left) + at(top, left)

    def _scattered_sums(self, maps: Tensor) -> Tensor:
        found = torch.empty(self.corners.shape[:-1], dtype=maps.dtype, device=maps.device)
        for sample, number in enumerate(self.ids):
            for k, side in enumerate(self.sides):
                for draw in range(self.sweep.count):
                    chosen = self.sweep.pixels(number, side, draw, self.image).to(maps.device)
                    found[sample, k, draw] = maps[sample].flatten()[chosen].sum()
        return found


@dataclass(frozen=True)
class BoxSweep(Runner[BoxResult]):
    """How boxes are drawn and hidden. Nothing here depends on maps: all methods and classes share the passes.

    Attributes:
        reference: What hidden means: `"black"`, `"zero"`, `"mean"` or `"blur"`.
        sizes: Sides of the boxes, rising; or how many sides, spread evenly up to the largest that still has as many
            places as boxes are drawn.
        count: Boxes of each side.
        seed: Of their places.
        sigma: Of the blur; None for a sixteenth of the shorter side.
        shape: `"box"`, or `"pixels"`: as many pixels scattered over the image (Sensitivity-n).
        grid: None: sizes are in pixels. Else in cells, of which so many make up the shorter side of the image.
        radius: Of the blur's kernel; None for three times the spread.
    """

    reference: str = "blur"
    sizes: tuple[int, ...] | int = 8
    count: int = 100
    seed: int = 0
    sigma: float | None = None
    shape: str = "box"
    grid: int | None = None
    radius: int | None = None

    def __post_init__(self) -> None:
        if self.reference not in PIXELS[:-1]:
            raise ArgumentError(
                f"Expected the reference to be one of {', '.join(PIXELS[:-1])}, but got {self.reference!r}."
            )
        if self.shape not in ("box", "pixels"):
            raise ArgumentError(f"Expected shape 'box' or 'pixels', but got {self.shape!r}.")
        if isinstance(self.sizes, int):
            if self.sizes < 1 or self.grid is not None:
                raise ArgumentError("Expected at least one size, and the sizes themselves where a grid is given.")
        elif not self.sizes or self.sizes[0] < 1 or list(self.sizes) != sorted(set(self.sizes)):
            raise ArgumentError(f"Expected rising sizes of boxes from 1 on, but got {self.sizes!r}.")
        if self.count < 2:
            raise ArgumentError(f"Expected at least 2 boxes of each size, but got {self.count!r}.")

    def sides(self, height: int, width: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Sizes on the axis and sides in pixels, for images of this size."""
        short = min(height, width)
        if isinstance(self.sizes, int):
            places = [s for s in range(1, short + 1) if (height - s + 1) * (width - s + 1) >= self.count]
            if not places:
                raise ArgumentError(
                    f"Expected images with at least {self.count} places for a box, but got {height}x{width}; give "
                    "sizes=, such as (1, 2, 3), or a smaller count=."
                )
            chosen = sorted({max(1, places[-1] * k // self.sizes) for k in range(1, self.sizes + 1)})
            return tuple(chosen), tuple(chosen)
        sides = tuple(s if self.grid is None else max(1, s * short // self.grid) for s in self.sizes)
        if sides[-1] > short:
            raise ArgumentError(f"Expected boxes that fit images of {height}x{width}, but got sides {sides}.")
        return self.sizes, sides

    def ask(self, subject: Subject, explained: Tensor | None = None, other: Tensor | None = None) -> BoxResult:
        """Hide each box and ask; classes as for `PerturbationSweep`."""
        if subject.batch.modality != "image":
            raise ArgumentError("Expected images: boxes have no meaning in texts.")
        pixels = subject.batch.pixels
        height, width = int(pixels.shape[-2]), int(pixels.shape[-1])
        sizes, sides = self.sides(height, width)
        corners = torch.stack([self._corners(number, sides, height, width) for number in subject.ids])
        corners = corners.to(subject.device)
        stand_in = subject.reference(self.reference, self.sigma, self.radius)
        side_of = torch.tensor(sides, device=subject.device)

        def change(samples: Tensor, draws: Tensor) -> Batch:
            size, draw = draws // self.count, draws % self.count
            if self.shape == "box":
                hidden = _inside(corners[samples, size, draw], side_of[size], height, width)
            else:
                hidden = self._scattered(subject, samples, size, draw, sides, (height, width))
            changed = torch.where(hidden[:, None], stand_in[samples], pixels[samples])
            return subject.variants(changed, samples, rows=False)

        wanted = subject.classes(explained, other)
        drops = drops_of(subject, self, len(sides) * self.count, change, wanted, "boxes")
        return BoxResult(self, (height, width), sizes, sides, corners, drops)

    def pixels(self, number: int, side: int, draw: int, image: tuple[int, int]) -> Tensor:
        """Scattered pixels of one draw for one sample, as many as a box of that side has."""
        # A seed of its own for each draw, so that any of them can be made again without the others.
        seeds = torch.randint(2**62, (self.count,), generator=generator_for(self.seed, number, _BOXES + side))
        own = torch.Generator().manual_seed(int(seeds[draw]))
        return torch.randperm(image[0] * image[1], generator=own)[: side * side]

    def _corners(self, number: int, sides: tuple[int, ...], height: int, width: int) -> Tensor:
        """Places of the boxes of one sample, (S, n, 2), by (seed, id, side)."""
        found = []
        for side in sides:
            draw = generator_for(self.seed, number, _BOXES + side)
            reach = (height - side + 1, width - side + 1)
            found.append(torch.stack([torch.randint(r, (self.count,), generator=draw) for r in reach], 1))
        return torch.stack(found)

    def _scattered(
        self,
        subject: Subject,
        samples: Tensor,
        size: Tensor,
        draw: Tensor,
        sides: tuple[int, ...],
        image: tuple[int, int],
    ) -> Tensor:
        hidden = torch.zeros(len(samples), image[0] * image[1], dtype=torch.bool)
        for row, (b, s, n) in enumerate(zip(samples.tolist(), size.tolist(), draw.tolist(), strict=True)):
            hidden[row, self.pixels(subject.ids[b], sides[s], n, image)] = True
        return hidden.view(-1, *image).to(subject.device)


def _inside(corners: Tensor, side: Tensor, height: int, width: int) -> Tensor:
    """Masks (M, H, W) of boxes by their corners (M, 2) and sides (M,)."""
    first, last = corners, corners + side[:, None]
    rows = torch.arange(height, device=corners.device)
    columns = torch.arange(width, device=corners.device)
    in_rows = (rows >= first[:, :1]) & (rows < last[:, :1])
    in_columns = (columns >= first[:, 1:]) & (columns < last[:, 1:])
    return in_rows[:, :, None] & in_columns[:, None]


_ROUNDING = 1e-15  # of each number in a sum


@dataclass(frozen=True)
class BoxProtocol(Protocol):
    """Of metrics of boxes hidden at random.

    Attributes:
        reference: What hidden means.
        sizes: Sides of the boxes; or how many of them.
        count: Boxes of each side.
        seed: Of their places.
        sigma: Of the blur.
        shape: `"box"` or `"pixels"`.
        grid: None: sizes are in pixels. Else in cells, of which so many make up the shorter side of the image.
    """

    reference: str = "blur"
    sizes: tuple[int, ...] | int = 8
    count: int = 100
    seed: int = 0
    sigma: float | None = None
    shape: str = "box"
    grid: int | None = None

    @property
    def idle(self) -> dict[str, str]:
        return blur_only(self.reference, "sigma")

    @property
    def passes(self) -> tuple[Any, ...]:
        return (self.boxes,)

    @property
    def boxes(self) -> BoxSweep:
        """The passes that it needs."""
        sizes = self.sizes if isinstance(self.sizes, int) else tuple(self.sizes)
        return BoxSweep(self.reference, sizes, self.count, self.seed, self.sigma, self.shape, self.grid)


def box_sensitivity(result: BoxResult, saliency: Tensor, explained: Tensor | None = None) -> Tensor:
    """`r(s) = Pearson(u, d)` of box sums `u` of the map and losses `d` of the logit, for each size: (B, S).

    0 where all sums or all losses are equal; NaN where there is no class.

    Args:
        result: Of boxes.
        saliency: Maps (B, h, w).
        explained: Whose logit is read, (B,); None for the predicted class; -1 for none.
    """
    return box_correlation(result, saliency, explained)[0]


def box_correlation(result: BoxResult, saliency: Tensor, explained: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The same, and whether all sums or all losses are equal, bool (B, S)."""
    # An offset of the map changes no correlation, and without it a constant map has sums of exactly 0.
    maps = check_maps(saliency, len(result.ids), result.image).double()
    maps = maps - maps.flatten(1).amin(1).view(-1, 1, 1)
    sums, lost = result.sums(maps), result.lost(explained)
    least = _ROUNDING * result.image[0] * result.image[1] * maps.flatten(1).amax(1)
    flat = _reach(sums) <= least[:, None].to(sums)
    flat |= _reach(lost) <= result.drops.rounding[:, None]
    return torch.where(flat, 0.0, correlation(sums, lost)), flat


def box_area(r: Tensor, sizes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Area under `r(s)`, (B, S), over the sizes, and the same over their reach, from -1 to 1; (B,) each.

    A single size has no area; its `r` stands for the second.
    """
    axis = torch.tensor(sizes, dtype=r.dtype, device=r.device)
    area = torch.trapezoid(r, axis, dim=1)
    return area, r[:, 0] if len(sizes) == 1 else area / (axis[-1] - axis[0])


def _reach(values: Tensor) -> Tensor:
    return values.amax(-1) - values.amin(-1)


@register_metric(
    "box-sensitivity",
    function=box_sensitivity,
    title="Does the sum of the map over a box say how much of the logit goes when the box is blurred?",
    paper="Brocki, Binda & Chung, CDAM, 2023, arXiv:2312.02364; scattered pixels: Ancona et al., Sensitivity-n, 2018, "
    "arXiv:1711.06104",
    passes="100 F per size, once for all methods and classes",
    traps="Sizes and axis of the published areas are not known; those of `cdam` are inferred, so only orders and "
    "ratios can be compared. Near the size of the image there are few places, and a random map can correlate by "
    "chance. Where all boxes lose the same, the correlation counts as 0: `flat` is the share of such sizes.",
    modalities=("image",),
    presets={"default": BoxProtocol(), "cdam": BoxProtocol(sizes=tuple(range(1, 28)), grid=28)},
)
class BoxSensitivity(PerImage):
    """Mean correlation over sizes, `normalised`; its `area` (both: higher is better); and the share `flat`."""

    columns = ("normalised", "area", "flat")
    outputs = ("normalised", "area", "flat")
    better = (True, True, None)
    protocol: BoxProtocol

    def of(self, case: Case) -> tuple[Any, ...]:
        """Boxes, which all maps of the samples share."""
        result = self.protocol.boxes.ask(case.subject, case.explained, case.other_class)
        return result, case.saliency, case.explained

    def score(self, result: BoxResult, saliency: Tensor, explained: Tensor | None = None) -> Tensor:
        """Per image."""
        r, flat = box_correlation(result, saliency, explained)
        area, normalised = box_area(r, result.sizes)
        return torch.stack([normalised, area, flat.double().mean(1)], 1)
