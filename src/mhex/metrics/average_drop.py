"""Average drop: how much of the class probability goes with the salient region, or without the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mhex.errors import ArgumentError
from mhex.metrics._drops import DropMetric, RegionProtocol
from mhex.metrics.protocols import Protocol
from mhex.metrics.registry import register_metric
from mhex.perturb import MaskedPass, MaskedResult
from mhex.perturb.references import WORDS

LEAST = 1e-12
UNSURE = 0.01  # a probability below it makes the relative drop mean little


@dataclass(frozen=True)
class DropProtocol(RegionProtocol):
    """Of the average drop of images.

    Attributes:
        relative: Whether the drop is a share of what was there, never below 0; else the plain difference.
    """

    relative: bool = True


@dataclass(frozen=True)
class TextDropProtocol(Protocol):
    """Of the average drop of texts.

    Attributes:
        mode: `"remove"` or `"keep"`.
        reference: What hidden means: `"mask_token"`, `"drop"` or `"pad"`.
        fraction: Of the tokens, at least one.
        scored: Whose probability is read: the `"explained"` class's, the `"predicted"` one's or the `"label"`'s.
        seed: Of ties.
        rounding: Of that share of the tokens, `"up"` or `"down"`.
        most: Tokens that it may be; None for no bound.
        relative: As for images.
    """

    mode: str = "remove"
    reference: str = "mask_token"
    fraction: float = 0.1
    scored: str = "predicted"
    seed: int = 0
    rounding: str = "up"
    most: int | None = None
    relative: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reference not in WORDS or self.mode.startswith("soft"):
            raise ArgumentError(
                f"Expected a reference of texts ({', '.join(WORDS)}) and mode 'remove' or 'keep', but got "
                f"{self.reference!r} and {self.mode!r}."
            )

    @property
    def runner(self) -> MaskedPass:
        """The pass that it needs."""
        return MaskedPass(
            self.mode,
            self.reference,
            fraction=self.fraction,
            seed=self.seed,
            rounding=self.rounding,
            most=self.most,
        )

    @property
    def passes(self) -> tuple[Any, ...]:
        return (self.runner,)


def average_drop(result: MaskedResult, scored: str = "explained", relative: bool = True) -> Tensor:
    """`max(0, (p(x) - p(x')) / p(x))`, from 0 to 1, (B,).

    Args:
        result: Of a pass with a part hidden.
        scored: Whose probability is read.
        relative: False for the plain difference `p(x) - p(x')`, which may be below 0.
    """
    before, after = result.of(scored)
    if not relative:
        return before - after
    return ((before - after) / before.clamp_min(LEAST)).clamp_min(0)


@register_metric(
    "average-drop",
    function=average_drop,
    title="How much of the class probability goes when the salient region is removed?",
    paper="Chattopadhyay et al., Grad-CAM++, WACV 2018, arXiv:1710.11063 (keep); Sun & Liò, Multi-Head "
    "Explainer, 2025 (remove)",
    passes="F",
    traps="Two metrics share this name. By name it means removal, and higher is better; with `mode='keep'` or "
    "`'soft-keep'` only the salient region is kept, and lower is better. Removing everything scores high: area is not "
    "looked at. Images whose probability is small from the start (`unsure`) have drops that mean little. Texts need a "
    "reference of their own: preset 'text', or 'mhex_text' for the published script, whose drop is absolute and may be "
    "below 0.",
    presets={
        "default": DropProtocol(),
        "mhex": DropProtocol(scored="label"),
        "gradcampp": DropProtocol(mode="soft-keep", scored="predicted"),
        "text": TextDropProtocol(),
        "mhex_text": TextDropProtocol(fraction=0.2, scored="label", rounding="down", most=20, relative=False),
    },
)
class AverageDrop(DropMetric):
    """Mean drop, relative unless the protocol says otherwise; higher is better for removal, lower for keeping."""

    columns = ("value", "unsure")
    outputs = ("value", "unsure")
    better = (True, None)
    protocol: DropProtocol | TextDropProtocol

    def __init__(self, preset: str = "default", **changes: Any) -> None:
        super().__init__(preset, **changes)
        removed = self.protocol.mode.endswith("remove")
        self.better = (removed, None)
        self.__dict__["higher_is_better"] = removed  # the class says it for removal, and torchmetrics guards the name

    def score(self, result: MaskedResult) -> Tensor:
        """Per image, and whether its probability was small from the start."""
        before, _ = result.of(self.protocol.scored)
        drop = average_drop(result, self.protocol.scored, self.protocol.relative)
        return torch.stack([drop, (before < UNSURE).double()], 1)
