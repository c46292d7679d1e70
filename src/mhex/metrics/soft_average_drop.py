"""Soft average drop: each pixel is replaced by the mean colour as far as the map says."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from mhex.metrics import PerImage, register_metric
from mhex.metrics.average_drop import HiddenProtocol, average_drop
from mhex.perturb import MaskedResult


@dataclass(frozen=True)
class SoftProtocol(HiddenProtocol):
    """Protocol of the soft average drop: pixels fade as far as the map says."""

    mode: ClassVar[str] = "soft-remove"
    reference: str = "mean"


def soft_average_drop(result: MaskedResult, scored: str = "explained") -> Tensor:
    """`max(0, (p(x) - p(x')) / p(x))` with `x' = x (1 - S) + m S`, `m` the mean colour of the image, (B,).

    Args:
        result: Result of a pass with `mode="soft-remove"`.
        scored: Whose probability is read.
    """
    return average_drop(result, scored)


@register_metric(
    "soft-average-drop",
    function=soft_average_drop,
    title="How much of the class probability goes when pixels fade as far as the map says?",
    paper="Sun & Liò, Multi-Head Explainer, 2025 (SAD)",
    passes="F",
    traps="Depends on the values of the map, not on ranks alone. Maps are scaled from 0 to 1 first, so an offset or a "
    "factor changes nothing, but a gamma does: a map that is high nearly everywhere scores the drop of a flat image. A "
    "constant map becomes 0 and removes nothing.",
    modalities=("image",),
    presets={"default": SoftProtocol(), "mhex": SoftProtocol(scored="label")},
)
class SoftAverageDrop(PerImage):
    """Mean relative drop under a soft mask; higher is better."""
