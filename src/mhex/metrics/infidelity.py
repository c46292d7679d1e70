"""Infidelity: how far the change that a map foretells is from the change of the score."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mhex.metrics._base import PerImage
from mhex.metrics.case import Case
from mhex.metrics.protocols import Protocol, blur_only
from mhex.metrics.registry import register_metric
from mhex.perturb import NoisePass, NoiseResult


@dataclass(frozen=True)
class NoiseProtocol(Protocol):
    """Of metrics of changes that do not depend on maps.

    Attributes:
        kind: `"square"` for maps that are contributions, `"gaussian"` for maps that are gradients.
        sigma: Of the Gaussian noise, in units of the model's input.
        draws: n.
        seed: Of the changes.
        reference: What a hidden square shows.
        blur: Spread of the reference `"blur"`.
        channels: Whether channels have noise of their `"own"`, or `"shared"`, as maps are; see `NoisePass`.
    """

    kind: str = "square"
    sigma: float = 0.1
    draws: int = 100
    seed: int = 0
    reference: str = "blur"
    blur: float | None = None
    channels: str = "shared"

    @property
    def idle(self) -> dict[str, str]:
        if self.kind == "gaussian":
            return dict.fromkeys(("reference", "blur"), "it is of hidden squares, and kind is 'gaussian'")
        noise = {
            "sigma": "it is of Gaussian noise, and kind is 'square'; the spread of the blur is `blur`",
            "channels": "it is of Gaussian noise, and kind is 'square'",
        }
        return noise | blur_only(self.reference, "blur")

    @property
    def passes(self) -> tuple[Any, ...]:
        return (self.runner,)

    @property
    def runner(self) -> NoisePass:
        """The passes that it needs."""
        return NoisePass(self.kind, self.sigma, self.draws, self.seed, self.reference, self.blur, self.channels)


def infidelity(result: NoiseResult, saliency: Tensor, explained: Tensor | None = None) -> Tensor:
    """`E[(b I.S - D)^2] / E[D^2]` with the best factor `b` for the map, `E[(I.S - D)^2]`, and `b`: (B, 3).

    `D = z(x) - z(x - I)`. The first is 0 for a perfect map and 1 for a useless one, whatever its unit; 1 where `I.S` is
    always 0, and NaN where the score never changes.

    Args:
        result: Of noise.
        saliency: Maps (B, h, w).
        explained: Whose logit is read, (B,); None for the predicted class.
    """
    seen = result.drops.of(explained)
    still = (seen.abs() <= result.drops.rounding[:, None]).all(1, keepdim=True)
    return squared_errors(result.products(saliency), seen.masked_fill(still, 0.0))


def squared_errors(foretold: Tensor, seen: Tensor) -> Tensor:
    """The same from `I.S` (B, n) and `D` (B, n)."""
    size = foretold.square().mean(1)
    factor = torch.where(size > 0, (foretold * seen).mean(1) / size, 0.0)
    free = (factor[:, None] * foretold - seen).square().mean(1) / seen.square().mean(1)
    return torch.stack([free, (foretold - seen).square().mean(1), factor], 1)


@register_metric(
    "infidelity",
    function=infidelity,
    title="How far is the change of the score that the map foretells from the one that is seen?",
    paper="Yeh et al., NeurIPS 2019, arXiv:1901.09392",
    passes="100 F, once for all methods and classes",
    traps="Maps without a unit, such as those of the CAM family, can be compared by the scale-free form alone: `raw` "
    "depends on their size, and on the size to which they were brought. The best factor may be negative, so that a map "
    "and its negative score the same: `reversed` is the share of such images. Noise fits gradients, hidden squares fit "
    "contributions. Noise is shared by the channels of a pixel, because a map has one number for all of them; preset "
    "`captum` draws it for each channel, as the example in captum's manual does, and its numbers are higher for maps "
    "of colour images, however good they are.",
    modalities=("image",),
    presets={
        "default": NoiseProtocol(),
        "gradient": NoiseProtocol("gaussian"),
        "captum": NoiseProtocol("gaussian", sigma=0.003, draws=10, channels="own"),
    },
)
class Infidelity(PerImage):
    """Scale-free infidelity, raw infidelity (lower is better), and the share of maps that point the wrong way."""

    columns = ("value", "raw", "reversed")
    outputs = ("value", "raw", "reversed")
    better = (False, False, None)
    skips = "scores that noise does not change"
    protocol: NoiseProtocol

    def of(self, case: Case) -> tuple[Any, ...]:
        """Changes, which all maps of the samples share."""
        result = self.protocol.runner.ask(case.subject, case.explained, case.other_class)
        return result, case.saliency, case.explained

    def score(self, result: NoiseResult, saliency: Tensor, explained: Tensor | None = None) -> Tensor:
        """Per image."""
        free, raw, factor = infidelity(result, saliency, explained).unbind(1)
        return torch.stack([free, raw, (factor < 0).double()], 1)
