"""Average drop: how much of the class probability goes with the salient region, or without the rest."""

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from mhex._settings import check_that
from mhex.metrics import PerImage, Protocol, Scored, register_metric
from mhex.perturb import PIXELS, WORDS, MaskedPass, MaskedResult

LEAST = 1e-12
UNSURE = 0.01  # a probability below it makes the relative drop mean little


@dataclass(frozen=True)
class MaskedProtocol(Protocol):
    """Protocol of metrics of one pass with a part hidden, whose settings `MaskedPass` has by the same names."""

    @property
    def passes(self) -> tuple[Any, ...]:
        return (MaskedPass(**{f.name: getattr(self, f.name) for f in fields(MaskedPass) if hasattr(self, f.name)}),)


@dataclass(frozen=True)
class HiddenProtocol(MaskedProtocol):
    """Protocol of metrics of one pass over images with a part hidden."""

    blur_parts = ("sigma",)
    reference: str = "zero"  # what hidden means: black, zero, mean or blur
    scored: Scored = "explained"
    sigma: float | None = None  # spread of the blur

    def __post_init__(self) -> None:
        super().__post_init__()
        expectation, advice = f"the reference to be one of {', '.join(PIXELS[:-1])}", "; texts have the preset 'text'"
        check_that(self.reference in PIXELS[:-1], expectation, repr(self.reference), advice)


@dataclass(frozen=True)
class RegionProtocol(HiddenProtocol):
    """Protocol of metrics that hide or keep a region; `mode` and `threshold` as for `MaskedPass`."""

    mode: str = "remove"
    threshold: float = 0.5

    @property
    def idle(self) -> dict[str, str]:
        soft = {"threshold": f"pixels fade as far as the map says, because mode is {self.mode!r}"}
        return super().idle | (soft if self.mode.startswith("soft") else {})


@dataclass(frozen=True)
class DropProtocol(RegionProtocol):
    """Protocol of the average drop of images: a share of what was there, never below 0, or the plain difference."""

    relative: bool = True


@dataclass(frozen=True)
class TextDropProtocol(MaskedProtocol):
    """Protocol of the average drop of texts; parts are as for `MaskedPass`, and two of them as for images."""

    mode: str = "remove"  # or keep
    reference: str = "mask_token"  # what hidden means: mask_token, drop or pad
    fraction: float = 0.1
    scored: Scored = "predicted"
    seed: int = 0
    rounding: str = "up"
    most: int | None = None
    relative: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        hard = self.reference in WORDS and not self.mode.startswith("soft")
        expectation = f"a reference of texts ({', '.join(WORDS)}) and mode 'remove' or 'keep'"
        check_that(hard, expectation, f"{self.reference!r} and {self.mode!r}")


def average_drop(result: MaskedResult, scored: str = "explained", relative: bool = True) -> Tensor:
    """`max(0, (p(x) - p(x')) / p(x))`, from 0 to 1, (B,).

    Args:
        result: Result of a pass with a part hidden.
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
class AverageDrop(PerImage):
    """Mean drop, relative unless the protocol says otherwise; higher is better for removal, lower for keeping."""

    columns = ("value", "unsure")
    better = (True, None)
    protocol: DropProtocol | TextDropProtocol

    def __init__(self, preset: str = "default", **changes: Any) -> None:
        super().__init__(preset, **changes)
        removed = self.protocol.mode.endswith("remove")
        self.better = (removed, None)
        self.__dict__["higher_is_better"] = removed  # the class says it for removal, and torchmetrics guards the name

    def score(self, result: MaskedResult) -> Tensor:
        before, _ = result.of(self.protocol.scored)
        return torch.stack([super().score(result), (before < UNSURE).double()], 1)
