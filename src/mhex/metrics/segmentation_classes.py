"""Segmentation agreement with several classes per image, as on PASCAL VOC."""

from __future__ import annotations

import torch
from torch import Tensor

from mhex.errors import ArgumentError
from mhex.perturb import at_size, minmax


def class_confusion(
    saliency: Tensor, classes: Tensor, mask: Tensor, threshold: float, count: int = 21, ignore: int = 255
) -> Tensor:
    """Confusion of each image, int64 (B, C, C): rows are what a pixel is, columns what the maps say.

    Every class that is in the image has a map, scaled from 0 to 1. A pixel is of the class whose map is highest there
    if that is above the threshold, else background. How maps are joined was not published: the rule is ours.

    Args:
        saliency: Maps (B, G, h, w) for the classes of each image; brought to the size of the masks, bilinear.
        classes: Number of the class of each map, (B, G), from 1 on; 0 or below where an image has fewer classes.
        mask: Class of each pixel, (B, H, W), 0 for background.
        threshold: On maps from 0 to 1.
        count: Number of classes C, background among them.
        ignore: Pixels of this value are left out.
    """
    if saliency.dim() != 4 or mask.dim() != 3 or classes.shape != saliency.shape[:2] or len(mask) != len(saliency):
        raise ArgumentError(
            "Expected maps (B, G, h, w), their classes (B, G) and masks (B, H, W), but got "
            f"{tuple(saliency.shape)}, {tuple(classes.shape)} and {tuple(mask.shape)}."
        )
    if not bool(saliency.isfinite().all()):
        raise ArgumentError("Expected finite maps, but got NaN or infinity.")
    classes, mask = classes.to(saliency.device).long(), mask.to(saliency.device).long()
    seen = mask != ignore
    if bool((classes >= count).any()) or bool(((mask < 0) | (mask >= count))[seen].any()):
        raise ArgumentError(f"Expected classes from 0 to {count - 1} and {ignore} at ignored pixels, but got others.")
    large = at_size(saliency.double().flatten(0, 1), (mask.shape[-2], mask.shape[-1]))
    scaled = minmax(large).view(*saliency.shape[:2], *mask.shape[-2:])
    scaled = scaled.masked_fill((classes < 1)[..., None, None], -torch.inf)
    highest, place = scaled.max(1)
    said = classes.gather(1, place.flatten(1)).view_as(mask).masked_fill(~(highest > threshold), 0)
    image = torch.arange(len(mask), device=mask.device).view(-1, 1, 1)
    pair = ((image * count + mask) * count + said)[seen]
    return torch.bincount(pair, minlength=len(mask) * count * count).view(-1, count, count)


def class_agreement(confusion: Tensor) -> tuple[Tensor, Tensor]:
    """Mean IoU over classes and pixel accuracy of confusions (..., C, C) summed over a data set.

    A class that neither has pixels nor is given any does not count in the mean.
    """
    both = confusion.diagonal(dim1=-2, dim2=-1).double()
    union = confusion.sum(-1) + confusion.sum(-2) - both
    return (both / union).nanmean(-1), both.sum(-1) / confusion.sum((-2, -1))
