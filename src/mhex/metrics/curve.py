"""Metrics that read the curves of one sweep, and their protocols."""

from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from mhex.metrics import Case, PerImage, Protocol
from mhex.metrics.protocols import Scored, check_units
from mhex.perturb import ORDERS, Order, PerturbationSweep, SweepResult, area


@dataclass(frozen=True)
class SweepProtocol(Protocol):
    """Protocol of metrics that read a sweep; its settings are those of `PerturbationSweep`, by the same names."""

    blur_parts = ("sigma", "radius")
    reference: str = "blur"
    steps: int = 20
    granularity: str = "pixel"
    tie: str = "random"
    seed: int = 0
    sigma: float | None = None
    radius: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_units(self.reference, self.granularity)

    @property
    def sweep(self) -> PerturbationSweep:
        """The passes that it needs, in both orders; a metric may read one of them alone."""
        return PerturbationSweep(**{f.name: getattr(self, f.name) for f in fields(SweepProtocol)})

    @property
    def passes(self) -> tuple[Any, ...]:
        return (self.sweep,)


@dataclass(frozen=True)
class ScoredProtocol(SweepProtocol):
    """Protocol of metrics that read one class along a sweep: the explained one, the predicted one or the label."""

    scored: Scored = "explained"


@dataclass(frozen=True)
class AreaProtocol(SweepProtocol):
    """Protocol of metrics of areas along a sweep, taken by a rule of `mhex.perturb.area`, where the class is clear."""

    area: str = "unit"

    def __post_init__(self) -> None:
        super().__post_init__()
        area(torch.zeros(1, self.steps + 1), self.area)  # refuses unknown rules, and grids without points for a rule

    @property
    def rule(self) -> str:
        """The same, by the name that functions of metrics have for it."""
        return self.area


@dataclass(frozen=True)
class CurveProtocol(AreaProtocol, ScoredProtocol):
    """Protocol of metrics of the area under a curve of one class."""


class CurveMetric(PerImage):
    """A metric of the curves of one sweep."""

    orders: ClassVar[tuple[Order, ...]] = ORDERS  # those that it reads; no others are made for it
    inserted: ClassVar[bool] = False  # whether it reads removal of the least important backwards: the most are put in
    protocol: SweepProtocol

    @property
    def sweep(self) -> PerturbationSweep:
        """The passes that it needs."""
        return replace(self.protocol.sweep, orders=self.orders)

    def of(self, case: Case) -> tuple[Any, ...]:
        return (case.sweep(self.sweep),)

    @property
    def output(self) -> str:
        """What it reads along them; see `SweepResult.curve`."""
        return "probability"

    def curves(self, result: SweepResult) -> dict[Order, Tensor]:
        """The curves that it reads, as it reads them: by order, (B, T + 1)."""
        curves = {order: result.curve(order, self.output, self.scored) for order in self.orders}
        return {order: curve.flip(1) if self.inserted else curve for order, curve in curves.items()}

    @property
    def scored(self) -> str:
        """The class whose output is read; where a protocol does not say, a hit is the label."""
        return str(getattr(self.protocol, "scored", "label"))
