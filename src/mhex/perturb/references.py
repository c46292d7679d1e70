"""What stands for removed pixels: a colour, the blurred image, or an imputation from the pixels around (ROAD)."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from mhex._settings import check_that
from mhex.errors import ArgumentError

Scale = tuple[Tensor, Tensor]
PIXELS = ("black", "zero", "mean", "blur", "impute")
WORDS = ("mask_token", "drop", "pad")


def reference(
    name: str, pixels: Tensor, scale: Scale | None = None, sigma: float | None = None, radius: int | None = None
) -> Tensor:
    """Values of removed pixels, (B, C, H, W). Those of `"impute"` depend on what is removed: see `imputed`.

    Args:
        name: `"black"`, colour 0 before normalisation; `"zero"`, 0 after it, the mean colour of the data; `"mean"`,
            the mean colour of each image; `"blur"`, the image blurred.
        pixels: Normalised images.
        scale: Mean and spread (C,) of the normalisation, for `"black"`.
        sigma: Spread of the blur in pixels; None for a sixteenth of the shorter side, 14 at 224.
        radius: As for `gaussian_blur`.
    """
    if name == "black":
        if scale is None:
            raise ArgumentError("Expected preprocess= with mean and std for the reference 'black'; or choose 'zero'.")
        mean, std = (values.to(pixels).view(-1, 1, 1) for values in scale)
        return (-mean / std).expand_as(pixels)
    if name == "zero":
        return torch.zeros_like(pixels)
    if name == "mean":
        return pixels.mean((2, 3), keepdim=True).expand_as(pixels)
    if name == "blur":
        return gaussian_blur(pixels, min(pixels.shape[-2:]) / 16 if sigma is None else sigma, radius)
    raise ArgumentError(f"Expected the reference to be one of {', '.join(map(repr, PIXELS))}, but got {name!r}.")


def gaussian_blur(pixels: Tensor, sigma: float, radius: int | None = None) -> Tensor:
    """Images (B, C, H, W) averaged with Gaussian weights of spread sigma, in pixels, reflected at the border.

    The kernel is 2 radius + 1 pixels wide; a radius of None is three times the spread, rounded up.
    """
    check_that(sigma > 0, "sigma of the blur to be above 0", sigma)
    radius = math.ceil(3 * sigma) if radius is None else radius
    is_count = isinstance(radius, int) and radius >= 1
    check_that(is_count, "the radius of the blur to be a whole number from 1 on", repr(radius))
    height, width = pixels.shape[-2:]
    advice = "; give a smaller sigma or radius, or None for both"
    check_that(radius < min(height, width), f"a blur that fits images of {height}x{width}", f"radius {radius}", advice)
    places = torch.arange(-radius, radius + 1, device=pixels.device, dtype=torch.float64)
    kernel = torch.exp(-places.square() / (2 * sigma**2))
    kernel = (kernel / kernel.sum()).to(pixels.dtype)
    channels = pixels.shape[1]
    padded = F.pad(pixels, (radius,) * 4, mode="reflect")
    with torch.autocast(pixels.device.type, enabled=False):  # the caller's is for the model alone
        rows = F.conv2d(padded, kernel.view(1, 1, -1, 1).expand(channels, 1, -1, 1), groups=channels)
        return F.conv2d(rows, kernel.view(1, 1, 1, -1).expand(channels, 1, 1, -1), groups=channels)


_ACCURACY, _ACCURACY_DOUBLE = 1e-6, 1e-10  # of the residual beside the right side
_DAMPING = 0.9  # of the steps that smooth
_MOST_STEPS = 500  # two dozen are enough for single, three for double precision
_ON_CPU = 3 * 224 * 224  # numbers solved for at once: more do not fit its caches


def imputed(pixels: Tensor, removed: Tensor) -> Tensor:
    """Images whose removed pixels solve `sum_j w_ij (v_j - v_i) = 0` over their neighbours `j`, without noise.

    Weights are 1/6 over an edge and 1/12 over a corner; neighbours outside of the image do not count. The matrix is
    symmetric, and positive as long as a pixel is kept; an image with none left becomes its own mean colour. Images are
    (M, C, H, W), and what is removed is bool (M, H, W).
    """
    exact = pixels.to(torch.promote_types(pixels.dtype, torch.float32))
    together = max(1, _ON_CPU // exact[0].numel()) if exact.device.type == "cpu" else len(exact)
    parts = [slice(start, start + together) for start in range(0, len(exact), together)]
    return torch.cat([_solved(exact[part], removed[part, None]) for part in parts]).to(pixels.dtype)


class _Grid:
    """The equations of holes (M, 1, H, W) on one grid: of the pixels, or of blocks of them.

    The weights of neighbours are those of `[1 2 1]` down times `[1 2 1]` across, over 12, without the centre.
    """

    def __init__(self, hole: Tensor, dtype: torch.dtype) -> None:
        self.hole = hole.to(dtype)
        self.weight = _neighbours(torch.ones_like(self.hole[:1]))
        self.smooth = _DAMPING * self.hole / self.weight

    def apply(self, values: Tensor) -> Tensor:
        """The matrix times values (M, C, H, W) that are 0 outside of holes."""
        return _neighbours(values).neg_().addcmul_(self.weight, values).mul_(self.hole)


def _neighbours(values: Tensor) -> Tensor:
    """Weighted sums of the neighbours of each value (..., H, W)."""
    padded = F.pad(values, (1, 1, 1, 1))
    across = (padded[..., :-2] + padded[..., 2:]).add_(padded[..., 1:-1], alpha=2)
    down = (across[..., :-2, :] + across[..., 2:, :]).add_(across[..., 1:-1, :], alpha=2)
    return down.sub_(values, alpha=4).div_(12)


def _grids(hole: Tensor, dtype: torch.dtype) -> list[_Grid]:
    """Grids of the pixels, and of ever larger blocks as long as some have no kept pixel."""
    grids = []
    while bool(hole.any()):
        grids.append(_Grid(hole, dtype))
        pixels = F.pad((~hole).to(dtype), (0, hole.shape[-1] % 2, 0, hole.shape[-2] % 2))
        hole = F.max_pool2d(pixels, 2) == 0
    return grids


def _nearly_solved(grids: list[_Grid], goal: Tensor, level: int = 0) -> Tensor:
    """One cycle of multigrid: smooth, let blocks of 2 x 2 solve what is left, and smooth again."""
    # Single steps bring a value to the next pixel alone, and the large holes of smooth maps would take hundreds of
    # them; blocks carry it across. As much before as after, so that conjugate gradients can build on it.
    grid = grids[level]
    values = grid.smooth * goal
    if level + 1 < len(grids):
        height, width = goal.shape[-2:]
        residual = F.pad(goal - grid.apply(values), (0, width % 2, 0, height % 2))
        coarse = _nearly_solved(grids, 4 * F.avg_pool2d(residual, 2) * grids[level + 1].hole, level + 1)
        fine = coarse.repeat_interleave(2, -2).repeat_interleave(2, -1)[..., :height, :width]
        values.addcmul_(grid.hole, fine)
    return values.addcmul_(grid.smooth, goal - grid.apply(values))


def _solved(pixels: Tensor, hole: Tensor) -> Tensor:
    """All images by conjugate gradients, each cycle of multigrid a step of them."""
    emptied = hole.flatten(1).all(1).view(-1, 1, 1, 1)
    # Accuracy is relative to the right side, in which an offset would hide what is to be solved for.
    valid = ~hole | emptied
    mean = torch.where(valid, pixels, 0.0).sum((2, 3), keepdim=True) / valid.sum((2, 3), keepdim=True)
    grids = _grids(hole & ~emptied, pixels.dtype)
    if not grids:
        return torch.where(emptied, mean, pixels)
    grid, tiny = grids[0], torch.finfo(pixels.dtype).tiny
    goal = grid.hole * _neighbours(torch.where(hole, 0.0, pixels - mean))
    values, residual = torch.zeros_like(goal), goal.clone()
    step = _nearly_solved(grids, residual)
    size = (residual * step).sum((2, 3), keepdim=True)
    accuracy = _ACCURACY_DOUBLE if pixels.dtype == torch.float64 else _ACCURACY
    enough = (goal.square().sum((2, 3), keepdim=True) + tiny) * accuracy**2
    for _ in range(_MOST_STEPS):
        unsolved = residual.square().sum((2, 3), keepdim=True) > enough
        if not bool(unsolved.any()):
            break
        along = grid.apply(step)
        # What is solved stays as it is, so that an image does not depend on those beside it.
        length = torch.where(unsolved, size / (step * along).sum((2, 3), keepdim=True).clamp_min(tiny), 0.0)
        values.addcmul_(length, step)
        residual.addcmul_(length, along, value=-1)
        new = _nearly_solved(grids, residual)
        after = (residual * new).sum((2, 3), keepdim=True)
        step = new.addcmul_(after / size.clamp_min(tiny), step)
        size = after
    return torch.where(emptied, mean, torch.where(hole, values + mean, pixels))
