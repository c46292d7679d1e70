"""Heat maps over photos, as pixels and in words."""

from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from mhex.inputs.photos import LARGEST, drawn_photo
from mhex.viz.captions import Drawable, effect_words, listed, remark, target_kind, target_label, target_scores
from mhex.viz.colour import GREY, Pixels, Scores, blend

_SMALLEST = 256  # pixels of the longer side: tiny photos are enlarged so that the map over them is smooth
_STRONGEST = 0.01  # share of the scores of a fine map that have the same colour


def overlay(explanation: Drawable, sample: int = 0, target: int = 0) -> Pixels:
    """The heat map of one sample and target over its photo, (H, W, 3), or over grey where there is no photo."""
    photo = photo_pixels(explanation, sample)
    if photo is None:
        height, width = explanation.size or explanation.scores.shape[-2:]
        photo = np.full((*_display_size(int(height), int(width)), 3), GREY, np.uint8)
    return blend(photo, heat(explanation, sample, target, (photo.shape[0], photo.shape[1])), explanation.signed)


def heat(explanation: Drawable, sample: int, target: int, size: tuple[int, int]) -> Scores:
    """Normalised scores (H, W) of one sample and target: in [0, 1], or [-1, 1] if signed; never NaN."""
    scores = target_scores(explanation, sample, target)
    if _is_fine(explanation):
        limit = scores.abs().flatten().kthvalue(max(1, int((1 - _STRONGEST) * scores.numel()))).values
        scores = scores.clamp(-limit, limit) if limit > 0 else scores
    # One sample at a time: the maps of a large batch at photo size would fill the memory for nothing.
    single = copy(explanation)
    single.scores = scores[None]
    return np.asarray(torch.nan_to_num(single.normalized(size=size)[0], posinf=1.0, neginf=-1.0).numpy(), np.float32)


def cells_over(photo: Pixels, cells: Tensor, size: Sequence[int]) -> Pixels:
    """Cells (grid, grid) in [0, 1] over a photo of an image of height and width `size`, with sharp edges."""
    scores = cells.detach().float().cpu().numpy()
    # The image itself was cut at floor(i * size / grid); each drawn pixel takes the cell that it lies in.
    rows, columns = (
        np.searchsorted(
            np.arange(1, len(scores) + 1) * length // len(scores), np.arange(side) * length // side, side="right"
        )
        for side, length in zip(photo.shape[:2], size, strict=True)
    )
    return blend(photo, np.asarray(scores[rows][:, columns], np.float32), signed=False)


def _is_fine(explanation: Drawable) -> bool:
    """True for maps of about one score per pixel, where a few extreme scores would leave the others without colour."""
    return explanation.size is not None and 4 * explanation.scores.shape[-1] > explanation.size[1]


def clip_note(explanations: Sequence[Drawable]) -> str:
    """A sentence on the maps whose strongest scores are drawn alike."""
    names = list(dict.fromkeys(entry.method for entry in explanations if _is_fine(entry)))
    if not names:
        return ""
    return (
        f"The strongest {100 * _STRONGEST:g} % of the scores have the same colour in maps of {listed(names)}, so that "
        "weaker scores can be seen."
    )


def photo_pixels(explanation: Drawable, sample: int) -> Pixels | None:
    """The photo of a sample at its own aspect ratio, (H, W, 3); None if it is not known."""
    return None if explanation.pictures is None else picture_pixels(explanation.pictures[sample])


def picture_pixels(picture: Any) -> Pixels:
    """A photo, or a normalised image (C, H, W), as pixels (H, W, 3) at a size for drawing."""
    photo = drawn_photo(picture)
    height, width = _display_size(photo.height, photo.width)
    return np.asarray(photo.resize((width, height), Image.Resampling.NEAREST))  # larger, or as it is


def _display_size(height: int, width: int) -> tuple[int, int]:
    longest = max(height, width)
    scale = -(-_SMALLEST // longest) if longest < _SMALLEST else min(1.0, LARGEST / longest)
    return max(1, round(height * scale)), max(1, round(width * scale))


def describe(explanation: Drawable, sample: int, target: int) -> str:
    """One map in words, for readers who cannot see it: what it speaks for, and where it is strongest."""
    name, value = target_label(explanation, sample, target)
    label = f"{name} ({value})" if value else name
    if text := remark(explanation, sample, target):
        return f"{label}: {text}"
    scores = target_scores(explanation, sample, target)
    row, column = divmod(int(scores.argmax()), scores.shape[1])
    vertical = ("top", "middle", "bottom")[3 * row // scores.shape[0]]
    horizontal = ("left", "centre", "right")[3 * column // scores.shape[1]]
    meaning = effect_words(explanation, label)[-1]
    if not explanation.class_specific:
        meaning = f"importance for any {target_kind(explanation)}, here {label}"
    return f"{meaning}, strongest at the {vertical} {horizontal}"
