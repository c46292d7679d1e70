"""From photos to the input of one network: squash to a square, scale to 0..1, normalise."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class View:
    """How one network sees a photo.

    Attributes:
        size: Side of the square input in pixels.
        mean: Mean of each colour channel, taken off after scaling to 0..1.
        std: Spread of each colour channel, divided by afterwards.
    """

    size: int
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD

    def __call__(self, images: Tensor) -> Tensor:
        """Prepare images for the network.

        Args:
            images: (N, 3, H, W), uint8 in 0..255 or floating point in 0..1.

        Returns:
            (N, 3, size, size), float32, normalised.
        """
        pixels = images.float() / 255 if images.dtype == torch.uint8 else images.float()
        pixels = squash(pixels, self.size)
        return (pixels - per_channel(self.mean, pixels.device)) / per_channel(self.std, pixels.device)

    def as_card(self) -> dict[str, Any]:
        """The entry ``preprocess`` of a model card."""
        return {"size": self.size, "interpolation": "bicubic", "mean": list(self.mean), "std": list(self.std)}


@cache
def per_channel(values: tuple[float, ...], device: torch.device) -> Tensor:
    """One number per colour channel as (1, C, 1, 1); kept, since a copy to the device stalls every training step."""
    return torch.tensor(values, device=device).view(1, -1, 1, 1)


def squash(pixels: Tensor, size: int) -> Tensor:
    """Resize to a square with bicubic interpolation, smoothed when shrinking as PIL does it.

    Args:
        pixels: (N, 3, H, W), floating point in 0..1.
        size: Side of the square.

    Returns:
        (N, 3, size, size), in 0..1.
    """
    if pixels.shape[-2:] == (size, size):
        return pixels
    resized = functional.interpolate(pixels, size=(size, size), mode="bicubic", antialias=True, align_corners=False)
    # Bicubic weights overshoot at edges; a stored photo could not hold such values.
    return resized.clamp(0, 1)
