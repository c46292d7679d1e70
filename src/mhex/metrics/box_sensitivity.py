"""Box sensitivity: does the sum of the map in a box say how much the model loses without it?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mhex.metrics._base import PerImage
from mhex.metrics.case import Case
from mhex.metrics.protocols import Protocol, blur_only
from mhex.metrics.registry import register_metric
from mhex.perturb import BoxResult, BoxSweep
from mhex.perturb.correlation import correlation
from mhex.perturb.units import check_maps

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
