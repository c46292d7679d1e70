"""Segmentation agreement: is the map, cut at a threshold, the object?"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mhex.metrics import JudgedMaps, Protocol, register_metric
from mhex.metrics.pointing_game import LocationMetric, on_mask, skip_empty
from mhex.perturb import generator_for, minmax

SEARCHED = tuple(k / 10 for k in range(10))
_NUMBERS = ("ap2", "foreground_ap", "foreground", "background")
_COUNTS = tuple(f"{kind}@{at}" for at in ("mean", *SEARCHED) for kind in ("true", "false"))
_HALF = 61  # purpose of random numbers


@dataclass(frozen=True)
class SegmentationProtocol(Protocol):
    """Protocol of segmentation agreement."""

    threshold: Literal["mean", "best"] = "mean"  # of `miou` and `pacc`: the mean of each map, or the best for all
    # The best is chosen on the half of the images that an image is not in; or on all, which flatters.
    chosen_on: Literal["half", "all"] = "half"
    seed: int = 0  # of the halves


def segmentation(saliency: Tensor, mask: Tensor) -> Tensor:
    """Numbers of each image that agreement on a data set is made of, (B, 26); NaN where there is no object.

    They are the average precision over both classes (scores `1 - S` with targets `1 - G`, and `S` with `G`), that of
    the object alone, the pixels of the object and of the rest, and then, at the mean of the map and at 0, 0.1 ... 0.9,
    how many pixels above the threshold are of the object and how many are not.

    Args:
        saliency: Maps (B, h, w); brought to the size of the masks, bilinear, and then from 0 to 1.
        mask: (B, H, W): 1 at the object, 0 elsewhere, -1 to be ignored.
    """
    saliency, mask = on_mask(saliency, mask)
    scaled, mask = minmax(saliency).flatten(1), mask.flatten(1)
    inside, outside, visible = mask == 1, mask == 0, mask >= 0
    two_classes = [torch.cat(pair, 1) for pair in ((1 - scaled, scaled), (outside, inside), (visible, visible))]
    precisions = torch.stack([average_precision(*two_classes), average_precision(scaled, inside, visible)], 1)
    sizes = torch.stack([inside.sum(1), outside.sum(1)], 1)
    levels: list[Tensor | float] = [scaled.mean(1, keepdim=True), *SEARCHED]
    counts = [((scaled > level) & part).sum(1) for level in levels for part in (inside, outside)]  # strictly
    return skip_empty(torch.cat([precisions, sizes.double(), torch.stack(counts, 1).double()], 1), mask[:, None])


def average_precision(scores: Tensor, positive: Tensor, counted: Tensor | None = None) -> Tensor:
    """`sum_t (R_t - R_(t-1)) P_t` over the distinct scores t from the highest on, (B,); NaN without a positive entry.

    Scores are (B, N), and equal ones are found together; `counted`, bool (B, N), is False at entries that are left out.
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


def agreement(true: Tensor, false: Tensor, foreground: Tensor, background: Tensor) -> tuple[Tensor, Tensor]:
    """Mean IoU of object and rest, and pixel accuracy, of pixel counts of a whole data set.

    `true` and `false` count the pixels above the threshold that are of the object and that are not, `foreground` and
    `background` all pixels of either kind. A class that neither has pixels nor is given any does not count in the mean.
    """
    outside = background - false
    union = background + foreground - true
    object_iou = true / (foreground + false)
    mean_iou = (object_iou + outside / union.clamp_min(1)) / 2
    return torch.where(union > 0, mean_iou, object_iou), (true + outside) / (foreground + background)


@register_metric(
    "segmentation",
    function=segmentation,
    title="Is the map, cut at a threshold, the object?",
    paper="Chefer, Gur & Wolf, CVPR 2021, arXiv:2012.09838; GradToken (searched threshold)",
    passes="0",
    traps="Where an object is does not say what a model looks at. Average precision over both classes (`ap2`, the "
    "published one) changes with any bend of the scale of the map, that of the object alone does not. A threshold "
    "chosen on the images that it is judged on flatters. IoU is of sums over the data set, not a mean over images.",
    modalities=("image",),
    data=("mask",),
    presets={
        "default": SegmentationProtocol(),
        "che": SegmentationProtocol("mean"),
        "gt": SegmentationProtocol("best", "all"),
    },
)
class Segmentation(LocationMetric):
    """Mean IoU and pixel accuracy of the data set, both average precisions, and the first two at the best threshold.

    The best threshold is that of the highest mean IoU, the lowest of equal ones. `best_threshold` is the mean of those
    chosen on the two halves. Where a half has no image, none can be chosen on it, and the three are NaN.
    """

    columns = (*_NUMBERS, "half", *_COUNTS)
    outputs = ("miou", "pacc", "ap2", "foreground_ap", "best_miou", "best_pacc", "best_threshold")
    better = (True, True, True, True, True, True, None)
    additive = False
    protocol: SegmentationProtocol

    def score(self, result: JudgedMaps) -> Tensor:
        rows = super().score(result)
        halves = [int(torch.randint(2, (), generator=generator_for(self.protocol.seed, i, _HALF))) for i in result.ids]
        half = torch.tensor(halves, device=rows.device, dtype=rows.dtype)[:, None]
        return torch.cat([rows[:, : len(_NUMBERS)], half, rows[:, len(_NUMBERS) :]], 1)

    def summary(self, rows: Tensor) -> Tensor:
        """From sums over images."""
        precisions = rows[..., :2].mean(-2)
        half, pixels = rows[..., 4:5], torch.cat([rows[..., 2:4], rows[..., 5:]], -1)
        everything = pixels.sum(-2)
        miou, pacc = _of_sums(everything)
        if self.protocol.chosen_on == "all":
            best = _searched(everything, everything)
        else:
            second = (pixels * half).sum(-2)
            first = everything - second
            best = [a + b for a, b in zip(_searched(first, second), _searched(second, first), strict=True)]
            best[2] = best[2] / 2
        best_miou, best_pacc = agreement(*best[0].unbind(-1), *best[1].unbind(-1))
        missing = torch.where(best[2].isnan(), torch.nan, 0.0).to(rows)
        at_best = [best_miou + missing, best_pacc + missing]
        values = at_best if self.protocol.threshold == "best" else [miou[..., 0], pacc[..., 0]]
        return torch.stack([*values, *precisions.unbind(-1), *at_best, best[2]], -1)


def _of_sums(sums: Tensor) -> tuple[Tensor, Tensor]:
    """Mean IoU and pixel accuracy at every threshold, (..., 11)."""
    counts = sums[..., 2:].reshape(*sums.shape[:-1], -1, 2)
    return agreement(counts[..., 0], counts[..., 1], sums[..., :1], sums[..., 1:2])


def _searched(chosen_on: Tensor, judged: Tensor) -> list[Tensor]:
    """Counts (..., 2) of some images at the threshold that is best for others, their sizes (..., 2), and it (...)."""
    miou, _ = _of_sums(chosen_on)
    place = miou[..., 1:].argmax(-1)
    counts = judged[..., 2:].reshape(*judged.shape[:-1], -1, 2)[..., 1:, :]
    picked = counts.gather(-2, place[..., None, None].expand(*place.shape, 1, 2))[..., 0, :]
    at = torch.tensor(SEARCHED, dtype=judged.dtype, device=judged.device)[place]
    return [picked, judged[..., :2], at.masked_fill(chosen_on[..., 0] == 0, torch.nan)]
