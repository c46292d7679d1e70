"""Random changes of whole batches of photos, on the device that holds them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from mhex.errors import ArgumentError
from mhex.train.view import per_channel


@dataclass(frozen=True)
class Augment:
    """Strengths of the random changes; the defaults suit small photo collections.

    Attributes:
        canvas: Side of the square that comes out, in pixels.
        scale: Smallest and largest share of the area that a crop keeps.
        ratio: Narrowest and widest stretch of a crop (width over height).
        rotate: Largest turn either way, in degrees.
        flip: Probability of a left-right flip.
        light: Largest relative change of brightness and of contrast.
        colour: Largest relative change of saturation.
        cast: Largest relative change of a single colour channel.
        grey: Probability of losing all colour.
        erase: Probability of covering a random box with noise.
        cutmix: Probability of pasting a box of another photo.
        mixup: Probability of blending with another photo.
    """

    canvas: int
    scale: tuple[float, float] = (0.25, 1.0)
    ratio: tuple[float, float] = (0.75, 4 / 3)
    rotate: float = 10.0
    flip: float = 0.5
    light: float = 0.3
    colour: float = 0.3
    cast: float = 0.08
    grey: float = 0.05
    erase: float = 0.0
    cutmix: float = 0.5
    mixup: float = 0.2

    def __post_init__(self) -> None:
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise ArgumentError(f"scale should be two ascending shares in (0, 1], not {self.scale}.")
        if self.cutmix + self.mixup > 1:
            raise ArgumentError(
                f"cutmix and mixup exclude each other, so their probabilities should sum to at most 1, not "
                f"{self.cutmix} + {self.mixup}."
            )


def uniform(count: int, low: float, high: float, generator: torch.Generator) -> Tensor:
    """Draw ``count`` numbers evenly from [low, high) on the generator's device, (count,)."""
    return torch.rand(count, generator=generator, device=generator.device) * (high - low) + low


def augment(images: Tensor, settings: Augment, generator: torch.Generator) -> Tensor:
    """Crop, turn, flip and recolour every photo of a batch on its own.

    Args:
        images: (N, 3, H, W), uint8, on the device of ``generator``.
        settings: The strengths.
        generator: Source of all randomness, so that a seed repeats the batch.

    Returns:
        (N, 3, canvas, canvas), float32 in 0..1.
    """
    pixels = images.float() / 255
    grid = functional.affine_grid(
        crop_matrices(len(images), settings, generator),
        [len(images), 3, settings.canvas, settings.canvas],
        align_corners=False,
    )
    pixels = functional.grid_sample(pixels, grid, mode="bilinear", padding_mode="reflection", align_corners=False)
    pixels = recolour(pixels, settings, generator)
    if settings.erase > 0:
        count, side = len(pixels), settings.canvas
        chosen = uniform(count, 0, 1, generator) < settings.erase
        hole = boxes(uniform(count, 0.02, 0.25, generator) * chosen, side, generator)
        noise = torch.rand(count, 3, 1, 1, generator=generator, device=generator.device)
        pixels = torch.where(hole, noise, pixels)
    return pixels


def crop_matrices(count: int, settings: Augment, generator: torch.Generator) -> Tensor:
    """Affine matrices of random crops, as ``affine_grid`` takes them (output to input, coordinates in -1..1).

    Args:
        count: How many.
        settings: Uses scale, ratio, rotate and flip.
        generator: Source of randomness.

    Returns:
        (count, 2, 3).
    """
    area = uniform(count, *settings.scale, generator)
    stretch = uniform(count, math.log(settings.ratio[0]), math.log(settings.ratio[1]), generator).exp()
    width = (area * stretch).sqrt().clamp(max=1)
    height = (area / stretch).sqrt().clamp(max=1)
    across = uniform(count, -1, 1, generator) * (1 - width)
    down = uniform(count, -1, 1, generator) * (1 - height)
    mirror = 1 - 2 * (uniform(count, 0, 1, generator) < settings.flip).float()
    turn = uniform(count, -math.radians(settings.rotate), math.radians(settings.rotate), generator)
    cos, sin = turn.cos(), turn.sin()
    return torch.stack(
        [
            torch.stack([width * mirror * cos, -width * mirror * sin, across], dim=1),
            torch.stack([height * sin, height * cos, down], dim=1),
        ],
        dim=1,
    )


def recolour(pixels: Tensor, settings: Augment, generator: torch.Generator) -> Tensor:
    """Change brightness, contrast, saturation and colour cast.

    Args:
        pixels: (N, 3, H, W) in 0..1.
        settings: Uses light, colour, cast and grey.
        generator: Source of randomness.

    Returns:
        (N, 3, H, W) in 0..1.
    """
    count = len(pixels)
    brightness = uniform(count, 1 - settings.light, 1 + settings.light, generator).view(-1, 1, 1, 1)
    contrast = uniform(count, 1 - settings.light, 1 + settings.light, generator).view(-1, 1, 1, 1)
    saturation = uniform(count, 1 - settings.colour, 1 + settings.colour, generator)
    saturation = (saturation * (uniform(count, 0, 1, generator) >= settings.grey)).view(-1, 1, 1, 1)
    cast = uniform(count * 3, 1 - settings.cast, 1 + settings.cast, generator).view(-1, 3, 1, 1)
    pixels = pixels * brightness * cast
    # Luma weights of Rec. 601, as PIL turns colour into grey.
    grey = (pixels * per_channel((0.299, 0.587, 0.114), pixels.device)).sum(dim=1, keepdim=True)
    pixels = grey + (pixels - grey) * saturation
    middle = grey.mean(dim=(2, 3), keepdim=True)
    return (middle + (pixels - middle) * contrast).clamp(0, 1)


def boxes(share: Tensor, side: int, generator: torch.Generator) -> Tensor:
    """Random boxes that cover about the given share of a square.

    Args:
        share: (N,) in 0..1; boxes cut off by the border cover less.
        side: Side of the square in pixels.
        generator: Source of randomness.

    Returns:
        (N, 1, side, side), bool, true inside the box.
    """
    count = len(share)
    half = (share.sqrt() / 2 * side).view(-1, 1)
    place = torch.arange(side, device=share.device).view(1, -1) + 0.5
    across = (place - uniform(count, 0, side, generator).view(-1, 1)).abs() < half
    down = (place - uniform(count, 0, side, generator).view(-1, 1)).abs() < half
    return (down[:, :, None] & across[:, None, :])[:, None]


def mix(pixels: Tensor, targets: Tensor, settings: Augment, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """CutMix or Mixup, chosen for every photo on its own.

    Args:
        pixels: (N, 3, S, S).
        targets: Class probabilities, (N, C).
        settings: Uses cutmix and mixup.
        generator: Source of randomness.

    Returns:
        Mixed pixels (N, 3, S, S), and targets (N, C) mixed by the share of pixels that each photo kept.
    """
    count, side = len(pixels), pixels.shape[-1]
    choice = uniform(count, 0, 1, generator)
    strength = uniform(count, 0, 1, generator)
    paste = boxes(strength * (choice < settings.cutmix), side, generator)
    blend = strength * ((choice >= settings.cutmix) & (choice < settings.cutmix + settings.mixup))
    keep = torch.where(paste, 0.0, 1.0) - blend.view(-1, 1, 1, 1)
    other = torch.randperm(count, generator=generator, device=generator.device)
    share = keep.mean(dim=(1, 2, 3)).view(-1, 1)
    return pixels * keep + pixels[other] * (1 - keep), targets * share + targets[other] * (1 - share)
