"""Max-sensitivity: how much a map changes when the input changes a little."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mhex.errors import ArgumentError
from mhex.metrics._base import PerImage
from mhex.metrics.case import Case
from mhex.metrics.protocols import Protocol
from mhex.metrics.registry import register_metric
from mhex.perturb import NeighbourPass, NeighbourResult


@dataclass(frozen=True)
class NeighbourProtocol(Protocol):
    """Of metrics that explain neighbours.

    Attributes:
        radius: Every number of the input moves by at most so much.
        draws: n.
        seed: Of the draws.
        units: Of the radius: `"raw"` colours from 0 to 1, or `"model"`, normalised.
    """

    radius: float = 0.02
    draws: int = 50
    seed: int = 0
    units: str = "raw"

    @property
    def passes(self) -> tuple[Any, ...]:
        return (self.runner,)

    @property
    def runner(self) -> NeighbourPass:
        """The passes that it needs."""
        return NeighbourPass(self.radius, self.draws, self.seed, self.units)


def max_sensitivity(result: NeighbourResult) -> Tensor:
    """`max_j |S(x + d_j) - S(x)| / |S(x)|`, (B,); a map of zeros is divided by 1.

    Args:
        result: Of neighbours explained again.
    """
    return result.change.amax(1) / torch.where(result.size > 0, result.size, 1.0)


@register_metric(
    "max-sensitivity",
    function=max_sensitivity,
    title="How much does the map change when the image changes by less than one can see?",
    paper="Yeh et al., NeurIPS 2019, arXiv:1901.09392",
    passes="50 (E + F)",
    traps="A map that ignores the input is perfectly stable. Where neighbours are predicted otherwise (`flipped`), the "
    "map should change. Values depend on radius, draws and units: those of other packages cannot be compared.",
    modalities=("image",),
    explains=True,
    presets={
        "default": NeighbourProtocol(),
        "captum": NeighbourProtocol(draws=10, units="model"),
        "quantus": NeighbourProtocol(0.2, 200, units="model"),
    },
)
class MaxSensitivity(PerImage):
    """Largest relative change (lower is better), and the share of neighbours that are predicted otherwise."""

    columns = ("value", "flipped")
    outputs = ("value", "flipped")
    better = (False, None)
    protocol: NeighbourProtocol

    def of(self, case: Case) -> tuple[Any, ...]:
        """Neighbours, explained again."""
        again = case.needs("again", "a way to explain changed images (again=)")
        if self.protocol.units == "raw" and case.subject.batch.scale is None:
            raise ArgumentError(
                "Expected to know how colours were normalised for a radius in raw colours: give preprocess= with mean "
                "and std, or a bundle, or choose units='model'."
            )
        runner = self.protocol.runner
        return (case.once(runner, lambda: runner.ask(case.subject, case.saliency, again, case.explained)),)

    def score(self, result: NeighbourResult) -> Tensor:
        """Per image."""
        return torch.stack([max_sensitivity(result), result.flipped.double().mean(1)], 1)
