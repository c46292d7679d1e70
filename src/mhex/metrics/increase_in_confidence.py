"""Increase in confidence: how often the salient region alone is more convincing than the whole."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mhex._settings import check_that
from mhex.metrics import PerImage, Scored, register_metric
from mhex.metrics.average_drop import RegionProtocol
from mhex.perturb import MaskedResult


@dataclass(frozen=True)
class KeepProtocol(RegionProtocol):
    """Protocol of metrics of the salient region alone."""

    scored: Scored = "predicted"
    mode: str = "soft-keep"

    def __post_init__(self) -> None:
        super().__post_init__()
        why = ": with that region removed it would measure the opposite"
        check_that(self.mode.endswith("keep"), "mode 'keep' or 'soft-keep'", repr(self.mode), why)


def increase_in_confidence(result: MaskedResult, scored: str = "predicted") -> Tensor:
    """`[p(x') > p(x)]` with the salient region alone in `x'`, (B,).

    Args:
        result: Result of a pass that keeps the salient region.
        scored: Whose probability is read.
    """
    before, after = result.of(scored)
    return (after > before).double().masked_fill(after.isnan(), torch.nan)


@register_metric(
    "increase-in-confidence",
    function=increase_in_confidence,
    title="How often is the salient region alone more convincing than the whole image?",
    paper="Chattopadhyay et al., Grad-CAM++, WACV 2018, arXiv:1710.11063",
    passes="0 beside average-drop with mode='soft-keep'",
    traps="Says nothing of by how much. Meant beside average-drop with the same mask.",
    modalities=("image",),
    presets={"default": KeepProtocol()},
)
class IncreaseInConfidence(PerImage):
    """Share of images; higher is better."""

    hits = True
