"""Metrics that read the curves of one sweep, and their protocols."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from mhex._settings import check_that
from mhex.metrics import Case, PerImage, Protocol
from mhex.metrics.protocols import Scored, check_units
from mhex.perturb import ORDERS, RANDOM_AREAS, STRATA, Grid, Order, PerturbationSweep, SweepResult, area, shares


@dataclass(frozen=True)
class SweepProtocol(Protocol):
    """Protocol of metrics that read a sweep; its settings are those of `PerturbationSweep`, by the same names."""

    blur_parts = ("sigma", "radius")
    absent: ClassVar[Mapping[str, str]] = {"grid": "this metric reads the points of even steps, and no area of a curve"}
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
class GridProtocol(SweepProtocol):
    """Protocol of metrics that read areas alone, so that levels may be drawn: see `PerturbationSweep.grid`."""

    grid: Grid = "even"

    def __post_init__(self) -> None:
        rule = getattr(self, "area", "unit")
        right, rules = self.grid != "random" or rule in RANDOM_AREAS, " or ".join(map(repr, RANDOM_AREAS))
        check_that(right, f"area {rules} beside grid='random'", repr(rule), ", which speaks of points of an even grid")
        super().__post_init__()

    @property
    def idle(self) -> dict[str, str]:
        # An even grid is said by its steps; a row of a report is known by what is printed.
        return super().idle if self.grid == "random" else {**super().idle, "grid": "steps are even"}

    def implied(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """A random grid needs few draws, whatever the steps of an even one were."""
        turned = changes.get("grid") == "random" != self.grid
        return {"steps": STRATA} if turned else {}

    @property
    def sweep(self) -> PerturbationSweep:
        return replace(super().sweep, grid=self.grid)


@dataclass(frozen=True)
class HitProtocol(GridProtocol, AreaProtocol):
    """Protocol of metrics of the area under accuracy."""


@dataclass(frozen=True)
class CurveProtocol(GridProtocol, AreaProtocol, ScoredProtocol):
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

    def shares(self, order: str) -> Tensor:
        """Share of the units that is removed, or put in, at each point of its curves, (T + 1,); on average if drawn."""
        sweep = self.protocol.sweep
        points = shares(sweep.steps, sweep.grid)
        return 1 - points.flip(0) if order == "lif" and not self.inserted else points

    @property
    def scored(self) -> str:
        """The class whose output is read; where a protocol does not say, a hit is the label."""
        return str(getattr(self.protocol, "scored", "label"))
