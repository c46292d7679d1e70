"""Where in an image gates and heads agree: their cosines with one part of it visible, or hidden, at a time."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from mhex._progress import track
from mhex.errors import ArgumentError, check_count, unknown_name
from mhex.heads.block import wide_dtype
from mhex.heads.collaboration import checked_heads, measure, save_drawing
from mhex.heads.predictors import watched
from mhex.inputs.data import labelled_batch, select

CellMode = Literal["keep", "occlude"]
_IMAGES = "pixel_values"


@dataclass(frozen=True, eq=False)
class ConfidenceMap:
    """How much each part of an image brings gates and heads together.

    Attributes:
        map: Scaled per image from its least to its largest value, (B, grid, grid) in [0, 1]; a constant map is zero.
        raw: The sums of cosines before that, (B, grid, grid).
        images: What was cut into parts, (B, C, H, W).
        labels: The labels of the images.
        mode: `"keep"`: only one part is visible. `"occlude"`: only one part is hidden, and the sum is by how much the
            cosines fall.
        blocks: Names of the blocks whose cosines were summed.
    """

    map: Tensor
    raw: Tensor
    images: Tensor
    labels: Tensor
    mode: CellMode
    blocks: tuple[str, ...]

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.map.shape))
        return f"ConfidenceMap({shape}, mode={self.mode!r}, {len(self.blocks)} blocks)"

    def show(self) -> Any:
        """Draw the maps over their images as a matplotlib figure; notebooks display it."""
        from mhex.viz import confidence_figure

        return confidence_figure(self.map, self.raw, self.images, self.mode)

    def save(self, path: str | PathLike[str]) -> Path:
        """Draw into a file; its suffix (`.png`, `.jpg`, `.pdf`, `.svg`, `.webp`) says how. Folders are made."""
        return save_drawing(self.show, path)


def confidence_map(
    model: nn.Module,
    inputs: Any,
    labels: Tensor | None = None,
    grid: int = 7,
    mode: CellMode = "keep",
    blocks: str = "all",
    chunk: int = 32,
    progress: bool = False,
) -> ConfidenceMap:
    """The map of `Scaffold.confidence_map`."""
    heads = checked_heads(model)
    check_count("chunk", chunk)
    if mode not in get_args(CellMode):
        raise unknown_name("mode", str(mode), get_args(CellMode))
    count = _count(blocks, len(heads.settings.junctions) - 1)
    _images(inputs)  # first: without a batch axis the labels would be blamed
    inputs, labels = labelled_batch(inputs, labels, heads.settings.check_labels)
    device = next(heads.parameters()).device
    images = _images(inputs).to(device)
    visible = cell_masks(images.shape[2], images.shape[3], grid).to(device)
    if mode == "occlude":  # and the whole image last, from whose cosines the others are taken
        visible = torch.cat([~visible, torch.ones_like(visible[:1])])
    mean = images.mean((2, 3), dtype=wide_dtype(images), keepdim=True).to(images.dtype)
    sums = []
    with watched(model, nudge=True, graph=True) as run:
        every = torch.arange(len(images) * len(visible), device=device)
        for part in track(torch.split(every, chunk), "Confidence map", progress):
            sample = part // len(visible)
            copies: Any = torch.where(visible[part % len(visible), None], images[sample], mean[sample])
            if isinstance(inputs, Mapping):
                copies = {**select(inputs, sample.cpu(), len(images)), _IMAGES: copies}
            seen = measure(run, heads, copies, labels[sample.to(labels.device)])
            sums.append(seen.cosine[:, -count:].sum(1))
    raw = torch.cat(sums).reshape(len(images), len(visible))
    if mode == "occlude":
        raw = raw[:, -1:] - raw[:, :-1]
    low, high = raw.amin(1, keepdim=True), raw.amax(1, keepdim=True)
    scaled = torch.where(high == low, 0.0, (raw - low) / (high - low))
    shape = (len(images), grid, grid)
    return ConfidenceMap(scaled.reshape(shape), raw.reshape(shape), images, labels, mode, seen.blocks[-count:])


def cell_masks(height: int, width: int, grid: int) -> Tensor:
    """The parts of an image, row by row, bool (grid * grid, H, W): each pixel is in one of them.

    In each direction it is cut at `floor(i * H / grid)`.
    """
    if not isinstance(grid, int) or isinstance(grid, bool) or not 1 <= grid <= min(height, width):
        raise ArgumentError(
            f"Expected grid to be a whole number from 1 to {min(height, width)}, the smaller side of the images, but "
            f"got {grid!r}."
        )
    edges = (torch.arange(1, grid + 1) * size // grid for size in (height, width))
    rows, columns = (torch.bucketize(torch.arange(int(end[-1])), end, right=True) for end in edges)
    return rows[:, None] * grid + columns == torch.arange(grid * grid)[:, None, None]


def _count(blocks: str, available: int) -> int:
    """How many of the blocks, counted from the last."""
    if blocks == "all":
        return available
    number = re.fullmatch(r"last([1-9]\d*)", blocks) if isinstance(blocks, str) else None
    if number is None:
        raise unknown_name("choice of blocks", str(blocks), ("all", "last3"))
    if int(number.group(1)) > available:
        raise ArgumentError(f"Expected at most {available} blocks, but got blocks={blocks!r}; use 'all'.")
    return int(number.group(1))


def _images(inputs: Any) -> Tensor:
    images = inputs.get(_IMAGES) if isinstance(inputs, Mapping) else inputs
    if isinstance(images, Tensor) and images.is_floating_point() and images.dim() == 4:
        return images
    if isinstance(images, Tensor) and images.is_floating_point() and images.dim() == 3:
        raise ArgumentError(
            f"Expected images (B, C, H, W), but got one without a batch axis, {tuple(images.shape)}: pass image[None], "
            "and its label likewise."
        )
    kind = f"the arguments {', '.join(inputs)}" if isinstance(inputs, Mapping) else type(images).__name__
    came = f"{tuple(images.shape)} ({images.dtype})" if isinstance(images, Tensor) else kind
    raise ArgumentError(
        f"Expected images (B, C, H, W), as a tensor or as {_IMAGES!r}, but got {came}: a grid is laid over images "
        "only. Scaffold.collaboration serves texts too."
    )
