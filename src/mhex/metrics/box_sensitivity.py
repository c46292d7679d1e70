"""Box sensitivity: does the sum of the map in a box say how much the model loses without it?"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from mhex._settings import check_choice, check_that
from mhex.capture import Batch
from mhex.metrics import Case, PerImage, Protocol, register_metric
from mhex.metrics.drops import Drops, drops_of
from mhex.perturb import PIXELS, PassResult, Runner, Subject, at_size, check_images, check_maps, generator_for
from mhex.stats.correlation import linear_correlation

_BOXES = 1000  # purpose of random numbers, to which the side is added
_ROUNDING = 1e-15  # of each number in a sum


@dataclass(frozen=True)
class BoxResult(PassResult):
    """What went with each box."""

    image: tuple[int, int]  # height and width of the images
    sizes: tuple[int, ...]  # on the axis of the area, (S,): pixels, or cells of the grid
    sides: tuple[int, ...]  # of the boxes in pixels, (S,)
    corners: Tensor  # top and left of each, (B, S, n, 2)
    drops: Drops  # what the scores lost, with S n changes for each sample

    def lost(self, classes: Tensor | None = None) -> Tensor:
        """`z_c(x) - z_c(x without the box)` of one class of each sample, (B, S, n)."""
        return self.drops.of(classes).view(len(self.ids), len(self.sizes), self.runner.count)

    def sums(self, saliency: Tensor) -> Tensor:
        """Sums of maps (B, h, w), brought to the size of the image, over each box: (B, S, n), float64."""
        maps = check_maps(saliency, len(self.ids), self.image).to(self.corners.device)
        maps = at_size(maps.double(), self.image)
        if self.runner.shape == "pixels":
            rows = zip(maps.flatten(1), self.ids, strict=True)
            return torch.stack([torch.stack([self._pixel_sums(m, i, side) for side in self.sides]) for m, i in rows])
        # One row and one column of zeros first: the sum of a box is then four look-ups.
        integral = F.pad(maps.cumsum(1).cumsum(2), (1, 0, 1, 0)).flatten(1)
        side = torch.tensor(self.sides, device=maps.device)[:, None]
        top, start = self.corners.unbind(-1)

        def at(row: Tensor, column: Tensor) -> Tensor:
            return integral.gather(1, (row * (self.image[1] + 1) + column).flatten(1)).view(top.shape)

        below, end = top + side, start + side
        return at(below, end) - at(top, end) - at(below, start) + at(top, start)

    def _pixel_sums(self, pixels: Tensor, number: int, side: int) -> Tensor:
        """Sums of one map (H W,) over the scattered pixels of each draw, (n,)."""
        draws = [self.runner.pixels(number, side, draw, self.image) for draw in range(self.runner.count)]
        return pixels[torch.stack(draws).to(pixels.device)].sum(1)


@dataclass(frozen=True)
class BoxProtocol(Protocol, Runner[BoxResult]):
    """How boxes are drawn and hidden. Nothing here depends on maps: all methods and classes share the passes."""

    blur_parts = ("sigma",)
    reference: str = "blur"  # what hidden means: black, zero, mean or blur
    # Sides, rising; or how many sides, spread evenly up to the largest that has as many places as boxes are drawn.
    sizes: tuple[int, ...] | int = 8
    count: int = 100  # boxes of each side
    seed: int = 0  # of their places
    sigma: float | None = None  # spread of the blur; None for a sixteenth of the shorter side
    shape: Literal["box", "pixels"] = "box"  # or as many pixels scattered over the image (Sensitivity-n)
    grid: int | None = None  # cells along the shorter side of the image, by which sizes count; None: they are in pixels

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("the reference", self.reference, PIXELS[:-1])  # imputed pixels depend on all that is removed
        if isinstance(self.sizes, int):
            right = self.sizes >= 1 and self.grid is None
        else:
            right = bool(self.sizes) and self.sizes[0] >= 1 and list(self.sizes) == sorted(set(self.sizes))
        check_that(right, "rising sizes of boxes from 1 on, or without a grid how many", self.sizes)
        check_that(self.count >= 2, "at least 2 boxes of each size", self.count)
        check_that(self.grid is None or self.grid >= 1, "a grid of at least 1 cell", self.grid)

    def sides(self, height: int, width: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Sizes on the axis and sides in pixels, for images of this size."""
        short = min(height, width)
        if isinstance(self.sizes, int):
            places = [s for s in range(1, short + 1) if (height - s + 1) * (width - s + 1) >= self.count]
            advice = "; give sizes=, such as (1, 2, 3), or a smaller count="
            check_that(bool(places), f"images with at least {self.count} places for a box", f"{height}x{width}", advice)
            sizes = sorted({max(1, places[-1] * k // self.sizes) for k in range(1, self.sizes + 1)})
            return tuple(sizes), tuple(sizes)
        sides = tuple(s if self.grid is None else max(1, s * short // self.grid) for s in self.sizes)
        check_that(sides[-1] <= short, f"boxes that fit images of {height}x{width}", f"sides {sides}")
        return self.sizes, sides

    def ask(
        self,
        subject: Subject,
        explained: Tensor | None = None,
        other_class: Tensor | None = None,
        radius: int | None = None,
    ) -> BoxResult:
        """Hide each box and ask; classes, and the radius of the blur's kernel, as for `PerturbationSweep`."""
        check_images(subject)
        pixels = subject.batch.pixels
        height, width = int(pixels.shape[-2]), int(pixels.shape[-1])
        sizes, sides = self.sides(height, width)
        corners = torch.stack([self._corners(number, sides, height, width) for number in subject.ids])
        corners = corners.to(subject.device)
        stand_in = subject.reference(self.reference, self.sigma, radius)
        side_of = torch.tensor(sides, device=subject.device)

        def change(samples: Tensor, draws: Tensor) -> Batch:
            size, draw = draws // self.count, draws % self.count
            if self.shape == "box":
                hidden = _inside(corners[samples, size, draw], side_of[size], height, width)
            else:
                hidden = torch.zeros(len(samples), height * width, dtype=torch.bool)
                jobs = zip(samples.tolist(), size.tolist(), draw.tolist(), strict=True)
                for row, (b, s, n) in zip(hidden, jobs, strict=True):
                    row[self.pixels(subject.ids[b], sides[s], n, (height, width))] = True
                hidden = hidden.view(-1, height, width).to(subject.device)
            changed = torch.where(hidden[:, None], stand_in[samples], pixels[samples])
            return subject.variants(changed, samples, rows=False)

        target = subject.classes(explained, other_class)
        drops = drops_of(subject, (self, radius), len(sides) * self.count, change, target, "boxes")
        return BoxResult(drops.ids, (height, width), sizes, sides, corners, drops, runner=self)

    def pixels(self, number: int, side: int, draw: int, image: tuple[int, int]) -> Tensor:
        """Scattered pixels of one draw for one sample, as many as a box of that side has."""
        # A seed of its own for each draw, so that any of them can be made again without the others.
        seeds = torch.randint(2**62, (self.count,), generator=generator_for(self.seed, number, _BOXES + side))
        generator = torch.Generator().manual_seed(int(seeds[draw]))
        return torch.randperm(image[0] * image[1], generator=generator)[: side * side]

    def _corners(self, number: int, sides: tuple[int, ...], height: int, width: int) -> Tensor:
        """Places of the boxes of one sample, (S, n, 2), by (seed, id, side)."""
        corners = []
        for side in sides:
            draw = generator_for(self.seed, number, _BOXES + side)
            reach = (height - side + 1, width - side + 1)
            corners.append(torch.stack([torch.randint(r, (self.count,), generator=draw) for r in reach], 1))
        return torch.stack(corners)


def _inside(corners: Tensor, side: Tensor, height: int, width: int) -> Tensor:
    """Masks (M, H, W) of boxes by their corners (M, 2) and sides (M,)."""
    last = corners + side[:, None]
    rows, columns = (torch.arange(size, device=corners.device) for size in (height, width))
    in_rows = (rows >= corners[:, :1]) & (rows < last[:, :1])
    in_columns = (columns >= corners[:, 1:]) & (columns < last[:, 1:])
    return in_rows[:, :, None] & in_columns[:, None]


def box_sensitivity(result: BoxResult, saliency: Tensor, explained: Tensor | None = None) -> Tensor:
    """`r(s) = Pearson(u, d)` of box sums `u` of the map and losses `d` of the logit, for each size: (B, S).

    0 where all sums or all losses are equal; NaN where there is no class.

    Args:
        result: Result of boxes.
        saliency: Maps (B, h, w).
        explained: Class whose logit is read, (B,); None for the predicted class; -1 for none.
    """
    return box_correlation(result, saliency, explained)[0]


def box_correlation(result: BoxResult, saliency: Tensor, explained: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The same, and whether all sums or all losses are equal, bool (B, S)."""
    # An offset of the map changes no correlation, and without it a constant map has sums of exactly 0.
    maps = check_maps(saliency, len(result.ids), result.image).double()
    maps = maps - maps.flatten(1).amin(1).view(-1, 1, 1)
    sums, drops = result.sums(maps), result.lost(explained)
    least = _ROUNDING * result.image[0] * result.image[1] * maps.flatten(1).amax(1)
    flat = sums.amax(-1) - sums.amin(-1) <= least[:, None].to(sums)
    flat |= drops.amax(-1) - drops.amin(-1) <= result.drops.rounding[:, None]
    return torch.where(flat, 0.0, linear_correlation(sums, drops)), flat


def box_area(r: Tensor, sizes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Area under `r(s)`, (B, S), over the sizes, and over their reach, -1 to 1 (`r` of a single size); (B,) each."""
    axis = torch.tensor(sizes, dtype=r.dtype, device=r.device)
    area = torch.trapezoid(r, axis, dim=1)
    return area, r[:, 0] if len(sizes) == 1 else area / (axis[-1] - axis[0])


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
    better = (True, True, None)
    protocol: BoxProtocol

    def of(self, case: Case) -> tuple[Any, ...]:
        result = self.protocol.ask(case.subject, case.explained, case.other_class)
        return result, case.saliency, case.explained

    def score(self, result: BoxResult, saliency: Tensor, explained: Tensor | None = None) -> Tensor:
        r, flat = box_correlation(result, saliency, explained)
        area, normalised = box_area(r, result.sizes)
        return torch.stack([normalised, area, flat.double().mean(1)], 1)
