"""From photos to the input of one network: squash to a square, scale to 0..1, normalise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from mhex.errors import ArgumentError
from mhex.inputs.photos import upright_rgb

# PIL's numbers for its filters, under the names that timm and the zoo's cards use.
_LONGEST = 2**14  # side of an input
FILTERS = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5}


@dataclass(frozen=True)
class Squash:
    """How a network sees a photo. Nothing is cropped, so that a map of the input lies on the whole photo.

    Attributes:
        height: Of the input in pixels.
        width: Of the input in pixels.
        mean: Of each colour, taken off after scaling to 0..1.
        std: Of each colour, divided by afterwards.
        interpolation: Name of the filter.
    """

    height: int
    width: int
    mean: Sequence[float]
    std: Sequence[float]
    interpolation: str = "bicubic"
    whole_photo: ClassVar[bool] = True  # tells `mhex.explain` that maps may be drawn over the photo

    def __post_init__(self) -> None:
        if not isinstance(self.interpolation, str) or self.interpolation not in FILTERS:
            raise ArgumentError(f"Expected an interpolation among {list(FILTERS)}, but got {self.interpolation!r}.")
        for name in ("height", "width"):
            side = getattr(self, name)
            if isinstance(side, bool) or not isinstance(side, int) or not 1 <= side <= _LONGEST:
                raise ArgumentError(f"Expected {name} to be a number of pixels from 1 to {_LONGEST}, but got {side!r}.")
        for name in ("mean", "std"):
            values = getattr(self, name)
            listed = isinstance(values, Sequence) and not isinstance(values, str) and len(values) in (1, 3)
            if not listed or not all(isinstance(value, (int, float)) and math.isfinite(value) for value in values):
                raise ArgumentError(f"Expected {name} to be a number for each of three colours, but got {values!r}.")
        if not all(self.std):
            raise ArgumentError(f"Expected std to be above 0, since colours are divided by it, but got {self.std!r}.")

    def __call__(self, photo: Any) -> Tensor:
        """Prepare a PIL image: a tensor (3, height, width), float32."""
        import numpy as np

        small = upright_rgb(photo).resize((self.width, self.height), FILTERS[self.interpolation])
        pixels = torch.from_numpy(np.array(small)).permute(2, 0, 1).float() / 255
        mean, std = torch.tensor(self.mean), torch.tensor(self.std)
        return (pixels - mean.view(-1, 1, 1)) / std.view(-1, 1, 1)


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
