"""Box sensitivity against the size of the boxes, as curves."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from PIL import Image
from torch import Tensor

import mhex
from mhex.judge.controls import control
from mhex.metrics.box_sensitivity import BoxProtocol, box_sensitivity
from mhex.perturb import Subject
from study_charts import stacked

METHODS = ("cdam", "cdam-smooth", "cdam-integrated", "attention", "gae", "transformer-attribution", "input-x-gradient")
RANDOM = "random map"
GRID = 28  # cells along an image, as in the paper
SIZES = (1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26)
BATCH = 20


def box_curves(bundle: mhex.Bundle, photos: Sequence[Image.Image], boxes: int, seed: int) -> dict[str, Tensor]:
    """Correlation of box sums and losses of the predicted class's logit, (N, sizes), by method.

    Args:
        bundle: The model.
        photos: N of them.
        boxes: Of each size.
        seed: Of their places, of random maps and of methods.
    """
    sweep = BoxProtocol(sizes=SIZES, grid=GRID, count=boxes, seed=seed)
    parts: dict[str, list[Tensor]] = {name: [] for name in (*METHODS, RANDOM)}
    for start in range(0, len(photos), BATCH):
        batch = list(photos[start : start + BATCH])
        ids = range(start, start + len(batch))
        subject = Subject(bundle.model, batch, ids=ids, preprocess=bundle.preprocess)
        result = sweep.ask(subject, subject.predicted)
        for name, found in parts.items():
            if name == RANDOM:
                maps = control("random", subject, seed)
            else:
                maps = mhex.explain(bundle, batch, method=name, target=subject.predicted, seed=seed).scores
            with torch.no_grad():
                found.append(box_sensitivity(result, maps, subject.predicted))
        print(f"boxes: {start + len(batch)} of {len(photos)} photos", flush=True)
    return {name: stacked(found) for name, found in parts.items()}


def mean_correlation(curves: Tensor) -> Tensor:
    """Area under curves (N, sizes) over the reach of the sizes, (N,): from -1 to 1."""
    axis = torch.tensor(SIZES, dtype=curves.dtype)
    return torch.trapezoid(curves, axis, dim=1) / (SIZES[-1] - SIZES[0])
