"""Random changes of whole batches of photos, on the device that holds them.

What is random is drawn first, for the whole batch of all processes; each process then changes its own photos. So the
number of processes does not change what a network sees.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor
from torch.nn import functional

from mhex.inputs.preprocess import per_channel
from mhex.lab.config.recipe import RecipeAugment


@dataclass(frozen=True)
class AugmentDraws:
    """What was drawn for a batch of N photos; every tensor has N rows."""

    matrices: Tensor  # crops as `affine_grid` takes them, (N, 2, 3)
    brightness: Tensor  # factors, (N,)
    contrast: Tensor  # factors, (N,)
    saturation: Tensor  # factors, 0 for photos that lose their colour, (N,)
    cast: Tensor  # factors of the channels, (N, 3)
    hole: Tensor  # erased box: middle across, middle down and half side in shares of the side, (N, 3)
    noise: Tensor  # colour of the erased box, (N, 3)
    paste: Tensor  # box that CutMix pastes, as `hole`, (N, 3)
    blend: Tensor  # share of the partner in Mixup, (N,)
    partner: Tensor  # row of the photo that is pasted or blended in, (N,), int64

    def take(self, rows: slice | Tensor) -> AugmentDraws:
        """Give the draws of some photos; ``partner`` still counts in the whole batch."""
        return replace(self, **{entry.name: getattr(self, entry.name)[rows] for entry in fields(self)})


def draw(count: int, settings: RecipeAugment, generator: torch.Generator) -> AugmentDraws:
    """Draw everything random about a whole batch of photos; the draws lie on the device of the generator."""

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return torch.rand(count, *shape, generator=generator, device=generator.device) * (high - low) + low

    def boxes(share: Tensor) -> Tensor:
        return torch.stack([uniform(0, 1), uniform(0, 1), share.sqrt() / 2], dim=1)

    area = uniform(*settings.scale)
    stretch = uniform(math.log(settings.ratio[0]), math.log(settings.ratio[1])).exp()
    width = (area * stretch).sqrt().clamp(max=1)
    height = (area / stretch).sqrt().clamp(max=1)
    across = uniform(-1, 1) * (1 - width)
    down = uniform(-1, 1) * (1 - height)
    mirror = 1 - 2 * (uniform(0, 1) < settings.flip).float()
    turn = uniform(-math.radians(settings.rotate), math.radians(settings.rotate))
    cos, sin = turn.cos(), turn.sin()
    rows = [
        torch.stack([width * mirror * cos, -width * mirror * sin, across], dim=1),
        torch.stack([height * sin, height * cos, down], dim=1),
    ]
    choice, strength = uniform(0, 1), uniform(0, 1)
    return AugmentDraws(
        matrices=torch.stack(rows, dim=1),
        brightness=uniform(1 - settings.light, 1 + settings.light),
        contrast=uniform(1 - settings.light, 1 + settings.light),
        saturation=uniform(1 - settings.colour, 1 + settings.colour) * (uniform(0, 1) >= settings.grey),
        cast=uniform(1 - settings.cast, 1 + settings.cast, 3),
        hole=boxes(uniform(0.02, 0.25) * (uniform(0, 1) < settings.erase)),
        noise=uniform(0, 1, 3),
        paste=boxes(strength * (choice < settings.cutmix)),
        blend=strength * ((choice >= settings.cutmix) & (choice < settings.cutmix + settings.mixup)),
        partner=torch.randperm(count, generator=generator, device=generator.device),
    )


def augment(images: Tensor, draws: AugmentDraws, side: int) -> Tensor:
    """Crop, turn, flip, recolour and erase photos (N, 3, H, W), uint8; gives (N, 3, side, side), float32 in 0..1."""
    pixels = images.float() / 255
    grid = functional.affine_grid(draws.matrices, [len(images), 3, side, side], align_corners=False)
    pixels = functional.grid_sample(pixels, grid, mode="bilinear", padding_mode="reflection", align_corners=False)
    pixels = pixels * draws.brightness.view(-1, 1, 1, 1) * draws.cast[:, :, None, None]
    # Luma weights of Rec. 601, as PIL turns colour into grey.
    grey = (pixels * per_channel((0.299, 0.587, 0.114), pixels.device)).sum(dim=1, keepdim=True)
    pixels = grey + (pixels - grey) * draws.saturation.view(-1, 1, 1, 1)
    middle = grey.mean(dim=(2, 3), keepdim=True)
    pixels = (middle + (pixels - middle) * draws.contrast.view(-1, 1, 1, 1)).clamp(0, 1)
    return torch.where(inside(draws.hole, side), draws.noise[:, :, None, None], pixels)


def inside(boxes: Tensor, side: int) -> Tensor:
    """Mark the pixels of a square that lie in a box as in `AugmentDraws.hole`, (N, 3): a mask (N, 1, S, S)."""
    place = (torch.arange(side, device=boxes.device).view(1, -1) + 0.5) / side
    across = (place - boxes[:, 0:1]).abs() < boxes[:, 2:3]
    down = (place - boxes[:, 1:2]).abs() < boxes[:, 2:3]
    return (down[:, :, None] & across[:, None, :])[:, None]


def mix(
    pixels: Tensor, partners: Tensor, targets: Tensor, partner_targets: Tensor, draws: AugmentDraws
) -> tuple[Tensor, Tensor]:
    """Apply CutMix or Mixup to pixels (N, 3, S, S) and class probabilities (N, C), as drawn for every photo.

    Both come with those of the partners. Targets are mixed by the share of pixels that each photo kept.
    """
    keep = torch.where(inside(draws.paste, pixels.shape[-1]), 0.0, 1.0) - draws.blend.view(-1, 1, 1, 1)
    share = keep.mean(dim=(1, 2, 3)).view(-1, 1)
    return pixels * keep + partners * (1 - keep), targets * share + partner_targets * (1 - share)
