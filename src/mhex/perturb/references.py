"""What "removed" means for pixels: the values that stand in their place."""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from mhex.errors import ArgumentError

Scale = tuple[Tensor, Tensor]
PIXELS = ("black", "zero", "mean", "blur", "impute")
WORDS = ("mask_token", "drop", "pad")
ImageReference = Literal["black", "zero", "mean", "blur", "impute"]


def reference(
    name: str, pixels: Tensor, scale: Scale | None = None, sigma: float | None = None, radius: int | None = None
) -> Tensor:
    """Values of removed pixels, (B, C, H, W). Those of `"impute"` depend on what is removed: see `imputed`.

    Args:
        name: `"black"`, colour 0 before normalisation; `"zero"`, 0 after it, the mean colour of the data; `"mean"`,
            the mean colour of each image; `"blur"`, the image blurred.
        pixels: Normalised images.
        scale: Mean and spread (C,) of the normalisation, for `"black"`.
        sigma: Of the blur, in pixels; None for a sixteenth of the shorter side, 14 at 224.
        radius: Of its kernel, 2 radius + 1 pixels wide; None for three times the spread, rounded up.
    """
    if name == "black":
        if scale is None:
            raise ArgumentError(
                "Expected to know how colours were normalised for the reference 'black': give preprocess= with mean "
                "and std, or a bundle, or choose the reference 'zero', 'mean' or 'blur'."
            )
        mean, std = (values.to(pixels).view(-1, 1, 1) for values in scale)
        return (-mean / std).expand_as(pixels)
    if name == "zero":
        return torch.zeros_like(pixels)
    if name == "mean":
        return pixels.mean((2, 3), keepdim=True).expand_as(pixels)
    if name == "blur":
        return gaussian_blur(pixels, min(pixels.shape[-2:]) / 16 if sigma is None else sigma, radius)
    raise ArgumentError(f"Expected the reference to be one of {', '.join(PIXELS)}, but got {name!r}.")


def gaussian_blur(pixels: Tensor, sigma: float, radius: int | None = None) -> Tensor:
    """Images averaged with Gaussian weights, reflected at the border.

    Args:
        pixels: (B, C, H, W).
        sigma: Spread in pixels.
        radius: Of the kernel, 2 radius + 1 pixels wide; None for three times the spread, rounded up.
    """
    if not sigma > 0:
        raise ArgumentError(f"Expected sigma of the blur to be above 0, but got {sigma!r}.")
    radius = math.ceil(3 * sigma) if radius is None else radius
    if not isinstance(radius, int) or radius < 1:
        raise ArgumentError(f"Expected the radius of the blur to be a whole number from 1 on, but got {radius!r}.")
    if radius >= min(pixels.shape[-2:]):
        raise ArgumentError(
            f"Expected a blur that fits images of {pixels.shape[-2]}x{pixels.shape[-1]}, but with sigma {sigma:g} it "
            f"reaches over {radius} pixels; give a smaller sigma or radius, or None for both."
        )
    places = torch.arange(-radius, radius + 1, device=pixels.device, dtype=torch.float64)
    kernel = torch.exp(-places.square() / (2 * sigma**2))
    kernel = (kernel / kernel.sum()).to(pixels.dtype)
    channels = pixels.shape[1]
    padded = F.pad(pixels, (radius,) * 4, mode="reflect")
    rows = F.conv2d(padded, kernel.view(1, 1, -1, 1).expand(channels, 1, -1, 1), groups=channels)
    return F.conv2d(rows, kernel.view(1, 1, 1, -1).expand(channels, 1, 1, -1), groups=channels)
