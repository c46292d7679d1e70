"""Removal: agreement with losses of regions, insertion and deletion, measured together for races of methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mhex.metrics import Case, PerImage, register_metric
from mhex.metrics.agreement import AgreementProtocol, Regions, agreement
from mhex.metrics.curve import GridProtocol
from mhex.perturb import STRATA, Grid, SweepResult, check_map


@dataclass(frozen=True)
class RemovalProtocol(GridProtocol):
    """Protocol of the curves, and of the regions, which have references of their own."""

    reference: str = "mean"
    steps: int = STRATA
    grid: Grid = "random"  # few levels without a bias
    regions: tuple[str, ...] = ("blur", "mean")  # what stands for removed regions, the mean over these
    sizes: tuple[int, ...] = (1, 2, 3)  # of regions, as for `AgreementProtocol`
    count: int = 24  # regions of each size by each reference

    @property
    def idle(self) -> dict[str, str]:
        return {name: why for name, why in super().idle.items() if name != "grid"}  # it is printed, also if it is even

    @property
    def agreement(self) -> AgreementProtocol:
        """How regions are removed."""
        return AgreementProtocol(self.regions, self.sizes, self.count, self.seed)

    @property
    def passes(self) -> tuple[Any, ...]:
        return (self.sweep, self.agreement)


def removal(regions: Regions, curves: SweepResult, saliency: Tensor, explained: Tensor | None = None) -> Tensor:
    """Agreement with losses of regions, area of insertion and area of deletion of each image, (B, 3).

    Areas are those of the probability of the explained class.

    Args:
        regions: What went with regions.
        curves: A sweep in both orders.
        saliency: Maps (B, h, w), of texts (B, T).
        explained: Class that is explained, (B,); None for the predicted class.
    """
    deletion = curves.area("mif", "probability", "explained")
    insertion = curves.area("lif", "probability", "explained", inserted=True)
    columns = [agreement(regions, saliency, explained).to(deletion), insertion, deletion]
    return torch.stack(columns, 1)


@register_metric(
    "removal",
    function=removal,
    title="Does the model lose what the map says, by regions and in the map's order, both ways?",
    paper="Ours, for mhex.recommend; chosen on networks of known evidence (docs/results/truth.md). Areas: Petsiuk et "
    "al., RISE, BMVC 2018, arXiv:1806.07421",
    passes="2 T F, and R S n F once for all methods",
    traps="Three numbers in units of their own: `mhex.recommend` weighs them by their spread over methods. What stands "
    "for removed pixels is part of the answer, so regions have two references.",
    presets={"default": RemovalProtocol(), "text": RemovalProtocol("drop", granularity="token", regions=("drop",))},
)
class Removal(PerImage):
    """Agreement and area of insertion (higher is better), and area of deletion (lower is better)."""

    columns = ("agreement", "insertion", "deletion")
    better = (True, True, False)
    protocol: RemovalProtocol

    def of(self, case: Case) -> tuple[Any, ...]:
        """Losses without regions, curves, and the maps."""
        regions = self.protocol.agreement.ask(case.subject, case.explained)
        return regions, case.sweep(self.protocol.sweep), check_map(case.subject, case.saliency), case.explained
