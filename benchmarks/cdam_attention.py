"""CDAM against attention, patch by patch: does a score need attention?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from PIL import Image
from torch import Tensor

import mhex
from mhex.stats.correlation import rank_correlation
from study_page import Interval, interval_of

TENTHS = 10
BATCH = 50


@dataclass(frozen=True)
class Beside:
    """Attention and CDAM of the same patches.

    Attributes:
        attention: Of all photos.
        cdam: Of all photos, for the predicted class.
    """

    attention: mhex.Explanation
    cdam: mhex.Explanation

    @property
    def patches(self) -> tuple[Tensor, Tensor]:
        """Attention and score of each patch, (N, patches) each, float64."""
        return self.attention.scores.flatten(1).double().cpu(), self.cdam.scores.flatten(1).double().cpu()


def beside(bundle: mhex.Bundle, photos: Sequence[Image.Image], seed: int) -> Beside:
    """Explain photos by both methods, a few at a time."""
    parts: dict[str, list[mhex.Explanation]] = {"attention": [], "cdam": []}
    for start in range(0, len(photos), BATCH):
        for name, found in parts.items():
            found.append(mhex.explain(bundle, list(photos[start : start + BATCH]), method=name, seed=seed))
    return Beside(*(_joined(found) for found in parts.values()))


def _joined(parts: Sequence[mhex.Explanation]) -> mhex.Explanation:
    targets = [one.target for one in parts if one.target is not None]
    return replace(
        parts[0],
        scores=torch.cat([one.scores for one in parts]),
        target=torch.cat(targets),
        logits=torch.cat([one.logits for one in parts]),
        probabilities=None,
        values=None,
        pictures=None,
    )


def correlations(found: Beside, seed: int) -> dict[str, Interval]:
    """Spearman's rho of attention with the score and with its size, over the patches of each photo."""
    attention, scores = found.patches
    return {
        "score": interval_of(rank_correlation(attention, scores), seed),
        "size of the score": interval_of(rank_correlation(attention, scores.abs()), seed),
    }


def tenths(found: Beside) -> list[tuple[float, float, float]]:
    """For each tenth of a photo's patches by attention, from least to most, over all photos: mean attention beside that
    of equal shares, and the median and the largest size of a score beside the largest of its photo.
    """
    attention, scores = found.patches
    order = attention.argsort(1)
    count = attention.shape[1]
    sizes = (scores.abs() / scores.abs().amax(1, keepdim=True)).gather(1, order)
    relative = (attention / attention.mean(1, keepdim=True)).gather(1, order)
    rows = []
    for k in range(TENTHS):
        part = slice(k * count // TENTHS, (k + 1) * count // TENTHS)
        here = sizes[:, part]
        rows.append((float(relative[:, part].mean()), float(here.median()), float(here.max())))
    return rows


def zeros(found: Beside) -> str:
    """What there is to say about scores where attention is 0."""
    attention, scores = found.patches
    none = attention == 0
    least = float((attention / attention.mean(1, keepdim=True)).min())
    if not bool(none.any()):
        return (
            "No patch of these photos has an attention of exactly 0 (a softmax gives none unless it underflows): the "
            f"least is {least:.2g} of its photo's mean."
        )
    scored = int((scores[none] != 0).sum())
    return f"{int(none.sum())} patches have an attention of exactly 0; {scored} of them have a score that is not 0."
