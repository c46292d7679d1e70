"""What metrics of a map alone, or of a map and a mask, share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mhex.errors import ArgumentError
from mhex.metrics._base import PerImage
from mhex.metrics.case import Case
from mhex.perturb import at_size, check_map, text_units


def average_precision(scores: Tensor, positive: Tensor, counted: Tensor | None = None) -> Tensor:
    """`sum_t (R_t - R_(t-1)) P_t` over the distinct scores t from the highest on, (B,); NaN without a positive entry.

    Args:
        scores: (B, N). Equal ones are found together.
        positive: Bool (B, N).
        counted: Bool (B, N), False at entries that are left out.
    """
    scores = scores.double()
    if counted is not None:
        scores, positive = scores.masked_fill(~counted, -torch.inf), positive & counted
    order = scores.argsort(1, descending=True)
    scores, hit = scores.gather(1, order), positive.gather(1, order)
    place = torch.arange(scores.shape[1], device=scores.device).expand_as(scores)
    precision = hit.cumsum(1).double() / (place + 1)
    last = torch.ones_like(hit)
    last[:, :-1] = scores[:, :-1] != scores[:, 1:]
    # The end of the run of equal scores that each entry is in.
    end = place.masked_fill(~last, scores.shape[1]).flip(1).cummin(1).values.flip(1)
    return (precision.gather(1, end) * hit).sum(1) / hit.sum(1)


MASK = "a mask for each image (1 at the object, 0 elsewhere, -1 to be ignored)"


@dataclass(frozen=True, eq=False)
class NativeMaps:
    """Maps at their own resolution, units in a row.

    Attributes:
        ids: Number of each sample in its data set.
        scores: (B, N).
        counted: Bool (B, N), False at special tokens and padding; None if every unit counts.
    """

    ids: tuple[int, ...]
    scores: Tensor
    counted: Tensor | None = None

    @classmethod
    def of(cls, case: Case) -> NativeMaps:
        """Those of a case."""
        if case.subject.batch.modality == "image":
            return cls(tuple(case.ids), check_map(case.subject, case.saliency).flatten(1))
        units = text_units(case.subject, case.saliency, "token")
        return cls(tuple(case.ids), units.scores, units.counted)


@dataclass(frozen=True, eq=False)
class LocatedMaps:
    """Maps, and where the object is.

    Attributes:
        ids: Number of each image in its data set.
        saliency: Maps at their own resolution, (B, h, w).
        mask: (B, H, W): 1 at the object, 0 elsewhere, -1 to be ignored.
    """

    ids: tuple[int, ...]
    saliency: Tensor
    mask: Tensor


class LocationMetric(PerImage):
    """A metric of a map and a mask."""

    skips = "no object in the mask"

    def of(self, case: Case) -> tuple[Any, ...]:
        """Both; no pass is needed."""
        mask = case.needs("mask", MASK)
        return (LocatedMaps(tuple(case.ids), check_map(case.subject, case.saliency), mask),)


def on_mask(saliency: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Maps (B, h, w), bilinear, at the size of masks (B, H, W), in float64; and the masks in int8.

    What cannot be compared is refused.
    """
    if not all(isinstance(one, Tensor) and one.dim() == 3 for one in (saliency, mask)) or len(saliency) != len(mask):
        shapes = " and ".join(str(tuple(getattr(one, "shape", ()))) for one in (saliency, mask))
        raise ArgumentError(f"Expected maps (B, h, w) and as many masks (B, H, W), but got {shapes}.")
    if not bool(saliency.isfinite().all()):
        raise ArgumentError("Expected finite maps, but got NaN or infinity.")
    known = (mask == 1) | (mask == 0) | (mask == -1)
    if not bool(known.all()):
        raise ArgumentError(
            f"Expected {MASK}, but got the value {mask[~known][0].item():g}; write other values as one of these."
        )
    mask = mask.to(saliency.device)
    return at_size(saliency.double(), (mask.shape[-2], mask.shape[-1])), mask.to(torch.int8)


def skip_empty(values: Tensor, mask: Tensor) -> Tensor:
    """Values (B,) or (B, J) with NaN where a mask (B, H, W) has no object: such an image does not count."""
    empty = ~(mask == 1).flatten(1).any(1)
    return values.masked_fill(empty if values.dim() == 1 else empty[:, None], torch.nan)
