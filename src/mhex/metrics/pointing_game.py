"""Pointing game: is the highest point of the map on the object?"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mhex._settings import check_that
from mhex.errors import ArgumentError
from mhex.metrics import Case, JudgedMaps, PerImage, Protocol, register_metric
from mhex.perturb import at_size, check_map

MASK = "a mask for each image (1 at the object, 0 elsewhere, -1 to be ignored)"


class LocationMetric(PerImage):
    """A metric of a map and a mask."""

    skips = "no object in the mask"

    def of(self, case: Case) -> tuple[Any, ...]:
        mask = case.needs("mask", MASK)
        return (JudgedMaps(tuple(case.ids), check_map(case.subject, case.saliency), mask),)

    def score(self, result: JudgedMaps) -> Tensor:
        return super().score(result.saliency, result.truth)


def on_mask(saliency: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Maps (B, h, w) at the size of masks (B, H, W), bilinear, float64, and masks in int8; misfits are refused."""
    pair = (saliency, mask)
    if not all(isinstance(tensor, Tensor) and tensor.dim() == 3 for tensor in pair) or len(saliency) != len(mask):
        shapes = " and ".join(str(tuple(getattr(tensor, "shape", ()))) for tensor in pair)
        raise ArgumentError(f"Expected maps (B, h, w) and as many masks (B, H, W), but got {shapes}.")
    check_that(bool(saliency.isfinite().all()), "finite maps", "NaN or infinity")
    wrong = mask[(mask != 1) & (mask != 0) & (mask != -1)].tolist()
    actual = f"the value {wrong[0]:g}" if wrong else ""
    check_that(not wrong, MASK, actual, "; write other values as one of these")
    mask = mask.to(saliency.device)
    return at_size(saliency.double(), (mask.shape[-2], mask.shape[-1])), mask.to(torch.int8)


def skip_empty(values: Tensor, mask: Tensor) -> Tensor:
    """Values (B,) or (B, J) with NaN where a mask (B, H, W) has no object: such an image does not count."""
    empty = ~(mask == 1).flatten(1).any(1)
    return values.masked_fill(empty if values.dim() == 1 else empty[:, None], torch.nan)


@dataclass(frozen=True)
class PointingProtocol(Protocol):
    """Protocol of the pointing game: by how many pixels of the mask the point may miss the object."""

    tolerance: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_that(self.tolerance >= 0, "a tolerance of 0 pixels or more", self.tolerance)


def pointing_game(saliency: Tensor, mask: Tensor, tolerance: int = 0) -> Tensor:
    """`[argmax S in G]`, (B,); of equal maxima, the share that is inside. NaN where there is no object.

    Args:
        saliency: Maps (B, h, w); brought to the size of the masks, bilinear.
        mask: (B, H, W): 1 at the object, 0 elsewhere, -1 where the map is not looked at.
        tolerance: The point counts as inside if the object is at most so many pixels away.
    """
    check_that(tolerance >= 0, "a tolerance of 0 pixels or more", tolerance)
    saliency, mask = on_mask(saliency, mask)
    visible = saliency.masked_fill(mask < 0, -torch.inf).flatten(1)
    highest = (visible == visible.amax(1, keepdim=True)) & (mask >= 0).flatten(1)
    inside = _grown(mask == 1, tolerance).flatten(1)
    return skip_empty((highest & inside).sum(1).double() / highest.sum(1), mask)


def _grown(inside: Tensor, by: int) -> Tensor:
    """Regions (B, H, W) with all that is at most so many pixels away from them."""
    if not by:
        return inside
    by = min(by, sum(inside.shape[-2:]))  # from there on it is everywhere
    places = torch.arange(-by, by + 1, device=inside.device)
    disc = (places[:, None].square() + places.square() <= by * by).float()
    return F.conv2d(inside[:, None].float(), disc[None, None], padding=by)[:, 0] > 0.5


@register_metric(
    "pointing-game",
    function=pointing_game,
    title="Is the highest point of the map on the object?",
    paper="Zhang et al., Excitation Backprop, ECCV 2016, arXiv:1608.00507",
    passes="0",
    traps="Looks at one point, so it is noisy. A large object is hit by chance: compare with the controls. That a map "
    "is on the object does not say that the model looks there.",
    modalities=("image",),
    data=("mask",),
    presets={"default": PointingProtocol(), "zhang": PointingProtocol(15)},
)
class PointingGame(LocationMetric):
    """Share of hits; higher is better."""

    hits = True
