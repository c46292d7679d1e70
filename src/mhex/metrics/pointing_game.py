"""Pointing game: is the highest point of the map on the object?"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mhex.errors import ArgumentError
from mhex.metrics._maps import LocatedMaps, LocationMetric, on_mask, skip_empty
from mhex.metrics.protocols import Protocol
from mhex.metrics.registry import register_metric


@dataclass(frozen=True)
class PointingProtocol(Protocol):
    """Of the pointing game.

    Attributes:
        tolerance: Pixels of the mask by which the point may miss the object.
    """

    tolerance: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(self.tolerance)


def pointing_game(saliency: Tensor, mask: Tensor, tolerance: int = 0) -> Tensor:
    """`[argmax S in G]`, (B,); of equal maxima, the share that is inside. NaN where there is no object.

    Args:
        saliency: Maps (B, h, w); brought to the size of the masks, bilinear.
        mask: (B, H, W): 1 at the object, 0 elsewhere, -1 where the map is not looked at.
        tolerance: The point counts as inside if the object is at most so many pixels away.
    """
    _check(tolerance)
    saliency, mask = on_mask(saliency, mask)
    seen = saliency.masked_fill(mask < 0, -torch.inf).flatten(1)
    highest = (seen == seen.amax(1, keepdim=True)) & (mask >= 0).flatten(1)
    inside = _grown(mask == 1, tolerance).flatten(1)
    return skip_empty((highest & inside).sum(1).double() / highest.sum(1), mask)


def _check(tolerance: int) -> None:
    if tolerance < 0:
        raise ArgumentError(f"Expected a tolerance of 0 pixels or more, but got {tolerance!r}.")


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
    protocol: PointingProtocol

    def score(self, result: LocatedMaps) -> Tensor:
        """Per image."""
        return pointing_game(result.saliency, result.mask, self.protocol.tolerance)
