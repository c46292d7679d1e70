"""From a photo to the input of a network: squash the whole photo to one size, scale to 0..1, normalise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from mhex._photo import upright_rgb
from mhex.errors import ArgumentError

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
