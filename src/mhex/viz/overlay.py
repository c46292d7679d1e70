"""Heat maps over photos."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from PIL import Image

from mhex.explanation import Explanation
from mhex.inputs.photos import LARGEST, drawn_photo
from mhex.viz.colour import GREY, Pixels, Scores, blend
from mhex.viz.panels import Panel, Row, draw_rows
from mhex.viz.sheet import (
    SCALE_NOTE,
    Sheet,
    choose,
    legend,
    prediction_note,
    remark,
    target_count,
    target_kind,
    target_label,
    target_scores,
)

_MOST_SAMPLES = 8
_MOST_TARGETS = 8
_SMALLEST = 256  # pixels of the longer side: tiny photos are enlarged so that the map over them is smooth
_CLIP = 0.99


def image_figure(
    explanation: Explanation, samples: Sequence[int] | None = None, targets: Sequence[int] | None = None
) -> Sheet:
    """Draw one row per sample: the photo, then the heat map of each target over it.

    Args:
        explanation: Of images.
        samples: Which samples to draw; None for the first eight, with a sentence on the others.
        targets: Which of several targets to draw; None for the first eight.
    """
    rows_of, more_samples = choose(samples, explanation.scores.shape[0], _MOST_SAMPLES, "samples", "mhex.viz.figure")
    columns_of, more_targets = choose(targets, target_count(explanation), _MOST_TARGETS, "targets", "mhex.viz.figure")
    rows = []
    for sample in rows_of:
        photo = photo_pixels(explanation, sample)
        first = [] if photo is None else [Panel(photo, f"sample {sample}" if len(rows_of) > 1 else "input")]
        maps = [_map_panel(explanation, sample, target) for target in columns_of]
        rows.append(Row([*first, *maps]))
    names = {target_label(explanation, sample, target)[0] for sample in rows_of for target in columns_of}
    bar = legend(explanation, names)
    notes = [prediction_note(explanation, rows_of), SCALE_NOTE, clip_note([explanation]), more_samples, more_targets]
    return draw_rows(rows, explanation.method, [bar], notes)


def _map_panel(explanation: Explanation, sample: int, target: int) -> Panel:
    name, said = target_label(explanation, sample, target)
    tail = ", ".join(filter(None, (said, remark(explanation, sample, target))))
    return Panel(overlay(explanation, sample, target), name, tail)


def overlay(explanation: Explanation, sample: int = 0, target: int = 0) -> Pixels:
    """The heat map of one sample and target over its photo, (H, W, 3), or over grey where there is no photo."""
    photo = photo_pixels(explanation, sample)
    if photo is None:
        height, width = explanation.size or explanation.scores.shape[-2:]
        height, width = _display_size(int(height), int(width))
        photo = np.full((height, width, 3), GREY, np.uint8)
    scores = heat(explanation, sample, target, (photo.shape[0], photo.shape[1]))
    return blend(photo, scores, explanation.signed)


def heat(explanation: Explanation, sample: int, target: int, size: tuple[int, int]) -> Scores:
    """Normalised scores (H, W) of one sample and target: in [0, 1], or [-1, 1] if signed; never NaN."""
    # One sample at a time: the maps of a large batch at photo size would fill the memory for nothing.
    scores = target_scores(explanation, sample, target)
    if _is_fine(explanation):
        limit = scores.abs().flatten().kthvalue(max(1, int(_CLIP * scores.numel()))).values
        scores = scores.clamp(-limit, limit) if limit > 0 else scores
    one = replace(explanation, scores=scores[None])
    return np.asarray(torch.nan_to_num(one.normalized(size=size)[0], posinf=1.0, neginf=-1.0).numpy(), np.float32)


def _is_fine(explanation: Explanation) -> bool:
    """True for maps of about one score per pixel, where a few extreme ones would leave the rest without colour."""
    return explanation.size is not None and 4 * explanation.scores.shape[-1] > explanation.size[1]


def clip_note(explanations: Sequence[Explanation]) -> str:
    """A sentence on the maps that are drawn clipped."""
    names = ", ".join(dict.fromkeys(e.method for e in explanations if _is_fine(e)))
    return f"Scores of single pixels ({names}) are clipped at their {100 * _CLIP:g} % quantile." if names else ""


def photo_pixels(explanation: Explanation, sample: int) -> Pixels | None:
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


def describe(explanation: Explanation, sample: int, target: int) -> str:
    """One map in words, for readers who cannot see it: what it speaks for, and where it is strongest."""
    name, value = target_label(explanation, sample, target)
    about = f"{name} ({value})" if value else name
    if said := remark(explanation, sample, target):
        return f"{about}: {said}"
    scores = target_scores(explanation, sample, target)
    row, column = divmod(int(scores.argmax()), scores.shape[1])
    vertical = ("top", "middle", "bottom")[3 * row // scores.shape[0]]
    horizontal = ("left", "centre", "right")[3 * column // scores.shape[1]]
    kind = target_kind(explanation)
    if not explanation.class_specific:
        shown = f"importance for any {kind}, here {about}"
    elif kind == "concept":
        shown = f"likeness to {about}"
    else:
        shown = f"what raises {about}" if explanation.task == "regression" else f"evidence for {about}"
    return f"{shown}, strongest at the {vertical} {horizontal}"
