"""Increase in confidence: how often the salient region alone is more convincing than the whole."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from mhex.errors import ArgumentError
from mhex.metrics.average_drop import DropMetric, DropProtocol
from mhex.metrics.registry import register_metric
from mhex.perturb import MaskedResult


def increase_in_confidence(result: MaskedResult, scored: str = "predicted") -> Tensor:
    """`[p(x') > p(x)]` with the salient region alone in `x'`, (B,).

    Args:
        result: Of a pass that keeps the salient region.
        scored: Whose probability is read.
    """
    before, after = result.of(scored)
    return (after > before).double()


@register_metric(
    "increase-in-confidence",
    function=increase_in_confidence,
    title="How often is the salient region alone more convincing than the whole image?",
    paper="Chattopadhyay et al., Grad-CAM++, WACV 2018, arXiv:1710.11063",
    passes="0 beside average-drop with mode='soft-keep'",
    traps="Says nothing of by how much. Meant beside average-drop with the same mask.",
    modalities=("image",),
    presets={"default": DropProtocol(mode="soft-keep", scored="predicted")},
)
class IncreaseInConfidence(DropMetric):
    """Share of images; higher is better."""

    def __init__(self, preset: str = "default", **changes: Any) -> None:
        super().__init__(preset, **changes)
        if not self.protocol.mode.endswith("keep"):
            raise ArgumentError(
                f"Expected mode 'keep' or 'soft-keep', but got {self.protocol.mode!r}: with that region removed it "
                "would measure the opposite."
            )

    def score(self, result: MaskedResult) -> Tensor:
        """Per image."""
        return increase_in_confidence(result, self.protocol.scored)
