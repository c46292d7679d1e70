"""From photos to the input of one network: squash to a square, scale to 0..1, normalise."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from mhex._settings import check_choice, check_that
from mhex.errors import ArgumentError
from mhex.inputs.photos import upright_rgb

_LONGEST = 2**14  # side of an input
# PIL's numbers for its filters, under the names that timm and the zoo's cards use.
FILTERS = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5}
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Preprocess:
    """How a network sees a photo. Nothing is cropped, so that a map of the input lies on the whole photo."""

    height: int  # of the input in pixels
    width: int
    mean: Sequence[float] = IMAGENET_MEAN  # of each colour, taken off after scaling to 0..1
    std: Sequence[float] = IMAGENET_STD  # of each colour, divided by afterwards
    interpolation: str = "bicubic"  # name of the filter for photos; tensors are resized by "bicubic" always
    whole_photo: ClassVar[bool] = True  # tells `mhex.explain` that maps may be drawn over the photo

    def __post_init__(self) -> None:
        check_choice("interpolation", self.interpolation, FILTERS)
        for name in ("height", "width"):
            side = getattr(self, name)
            if isinstance(side, bool) or not isinstance(side, int) or not 1 <= side <= _LONGEST:
                raise ArgumentError(f"Expected {name} to be a number of pixels from 1 to {_LONGEST}, but got {side!r}.")
        for name in ("mean", "std"):
            values = getattr(self, name)
            listed = isinstance(values, Sequence) and not isinstance(values, str) and len(values) in (1, 3)
            if not listed or not all(isinstance(value, (int, float)) and math.isfinite(value) for value in values):
                raise ArgumentError(f"Expected {name} to be a number for each of three colours, but got {values!r}.")
            object.__setattr__(self, name, tuple(values))  # cards hold lists, which cannot be compared or hashed
        check_that(all(self.std), "std to be above 0, since colours are divided by it", repr(self.std))

    def __call__(self, images: Any) -> Tensor:
        """Prepare a photo, or a batch of images, for the network.

        Args:
            images: A PIL image; or a tensor (N, 3, H, W), uint8 in 0..255 or floating point in 0..1.

        Returns:
            Normalised float32: (3, height, width) of a PIL image, (N, 3, height, width) of a tensor.
        """
        if not isinstance(images, Tensor):
            from torchvision.transforms.v2.functional import pil_to_tensor

            small = upright_rgb(images).resize((self.width, self.height), FILTERS[self.interpolation])
            return self(pil_to_tensor(small)[None])[0]
        pixels = images.float() / 255 if images.dtype == torch.uint8 else images.float()
        pixels = squash(pixels, (self.height, self.width))
        mean, std = (per_channel(tuple(values), pixels.device) for values in (self.mean, self.std))
        return (pixels - mean) / std

    def as_card(self) -> dict[str, Any]:
        """The entry ``preprocess`` of a model card, for a square input."""
        mean, std = list(self.mean), list(self.std)
        return {"size": self.height, "interpolation": self.interpolation, "mean": mean, "std": std}


@cache
def per_channel(values: tuple[float, ...], device: torch.device) -> Tensor:
    """One number per colour channel as (1, C, 1, 1); kept, since a copy to the device stalls every training step."""
    return torch.tensor(values, device=device).view(1, -1, 1, 1)


def squash(pixels: Tensor, size: tuple[int, int]) -> Tensor:
    """Images (N, 3, H, W) in 0..1 resized by bicubic interpolation, smoothed when shrinking as PIL does it."""
    if pixels.shape[-2:] == size:
        return pixels
    resized = F.interpolate(pixels, size=size, mode="bicubic", antialias=True, align_corners=False)
    # Bicubic weights overshoot at edges; a stored photo could not hold such values.
    return resized.clamp(0, 1)
