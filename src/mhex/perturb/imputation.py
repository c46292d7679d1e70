"""Noisy linear imputation (ROAD): removed pixels are weighted means of their neighbours, plus a little noise."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_SIDE, _CORNER = 1 / 6, 1 / 12
_ACCURACY, _ACCURACY_DOUBLE = 1e-6, 1e-10  # of the residual beside the right side
_MOST_STEPS = 2000


def _kernel(like: Tensor) -> Tensor:
    """Weights of the eight neighbours, (1, 1, 3, 3)."""
    corner, side = _CORNER, _SIDE
    return like.new_tensor([[corner, side, corner], [side, 0.0, side], [corner, side, corner]]).view(1, 1, 3, 3)


def _neighbours(values: Tensor) -> Tensor:
    """Weighted sums over neighbours inside the image, of (M, C, H, W)."""
    flat = values.flatten(0, 1)[:, None]
    return F.conv2d(flat, _kernel(values), padding=1).view_as(values)


def imputed(pixels: Tensor, removed: Tensor) -> Tensor:
    """Images whose removed pixels solve `sum_j w_ij (v_j - v_i) = 0` over their neighbours `j`, without noise.

    The equations of all images are solved at once by conjugate gradients: the matrix is symmetric, and positive as
    long as a pixel is kept. An image with none left becomes its own mean colour.

    Args:
        pixels: (M, C, H, W).
        removed: Bool (M, H, W).
    """
    hole = removed[:, None]
    emptied = removed.flatten(1).all(1).view(-1, 1, 1, 1)
    known = torch.where(hole, 0.0, pixels)
    weight = _neighbours(torch.ones_like(pixels[:, :1]))  # of neighbours that are inside the image
    mean = pixels.mean((2, 3), keepdim=True)

    def apply(v: Tensor) -> Tensor:
        return torch.where(hole, weight * v - _neighbours(v), 0.0)

    goal = torch.where(hole & ~emptied, _neighbours(known), 0.0)
    # Begins with the mean colour, from which most pixels are not far.
    found = torch.where(hole & ~emptied, mean, 0.0).expand_as(pixels).clone()
    rest = goal - apply(found)
    step = rest.clone()
    size = rest.square().sum((2, 3), keepdim=True)
    accuracy = _ACCURACY_DOUBLE if pixels.dtype == torch.float64 else _ACCURACY
    enough = (goal.square().sum((2, 3), keepdim=True) + torch.finfo(pixels.dtype).tiny) * accuracy**2
    for _ in range(_MOST_STEPS):
        unsolved = size > enough
        if not bool(unsolved.any()):
            break
        along = apply(step)
        length = size / (step * along).sum((2, 3), keepdim=True).clamp_min(torch.finfo(pixels.dtype).tiny)
        # What is solved stays as it is, so that an image does not depend on those beside it.
        length = torch.where(unsolved, length, 0.0)
        found = found + length * step
        rest = rest - length * along
        after = rest.square().sum((2, 3), keepdim=True)
        step = rest + after / size.clamp_min(torch.finfo(pixels.dtype).tiny) * step
        size = after
    return torch.where(hole, torch.where(emptied, mean, found), pixels)
