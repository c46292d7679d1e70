"""Effective average drop: the drop weighted by how large the map is, with its optimum at a quarter of the image."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mhex.metrics import PerImage, register_metric
from mhex.metrics.average_drop import HiddenProtocol, average_drop
from mhex.perturb import MaskedResult


@dataclass(frozen=True)
class WeightedDropProtocol(HiddenProtocol):
    """Protocol of the effective average drop: above which values a map from 0 to 1 is removed, and has area."""

    mode: ClassVar[str] = "remove"
    threshold: float = 0.5
    area_threshold: float = 0.2


def area_weight(area: Tensor) -> Tensor:
    """`w(A) = 5 A / (1 + 256 A^5)`: 1 at a quarter, where it is highest; 0 without area."""
    return 5 * area / (1 + 256 * area**5)


def effective_average_drop(result: MaskedResult, scored: str = "explained", area_threshold: float = 0.2) -> Tensor:
    """`D w(A)`, `D` the relative drop and `A` the share of the map above a threshold, (B,).

    Args:
        result: Result of a pass with the salient region removed.
        scored: Whose probability is read.
        area_threshold: On the map scaled from 0 to 1.
    """
    return average_drop(result, scored) * area_weight(_area(result, area_threshold))


def _area(result: MaskedResult, threshold: float) -> Tensor:
    return (result.scaled.flatten(1) > threshold).double().mean(1)


@register_metric(
    "effective-average-drop",
    function=effective_average_drop,
    title="How much of the class probability goes with a region of a sensible size?",
    paper="Sun & Liò, Multi-Head Explainer, 2025 (EAD)",
    passes="0 beside average-drop",
    traps="That a quarter of the image is right is a guess about objects: small lesions reward wrong maps. Its area "
    "is measured above another threshold than the one that removes. Both depend on the contrast of a map: squared, it "
    "keeps the order of its pixels and gets another value. For an equal area, judge maps that are 1 at the highest "
    "quarter and 0 elsewhere; the value is the plain drop then.",
    modalities=("image",),
    presets={"default": WeightedDropProtocol(), "mhex": WeightedDropProtocol(scored="label")},
)
class EffectiveAverageDrop(PerImage):
    """Mean weighted drop (higher is better), and the mean area."""

    columns = ("value", "area")
    better = (True, None)
    protocol: WeightedDropProtocol

    def score(self, result: MaskedResult) -> Tensor:
        return torch.stack([super().score(result), _area(result, self.protocol.area_threshold)], 1)
