"""What the metrics that read one sweep share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor

from mhex.metrics._base import PerImage
from mhex.metrics.case import Case
from mhex.metrics.protocols import SweepProtocol
from mhex.perturb import ORDERS, Order, PerturbationSweep, SweepResult


class CurveMetric(PerImage):
    """A metric of the curves of one sweep.

    Attributes:
        orders: Those that it reads; no others are made for it.
        inserted: True if it reads removal of the least important units backwards: as insertion of the most important.
    """

    orders: ClassVar[tuple[Order, ...]] = ORDERS
    inserted: ClassVar[bool] = False
    protocol: SweepProtocol

    @property
    def sweep(self) -> PerturbationSweep:
        """The passes that it needs."""
        return replace(self.protocol.sweep, orders=self.orders)

    def of(self, case: Case) -> tuple[Any, ...]:
        """The sweep of the protocol."""
        return (case.sweep(self.sweep),)

    @property
    def output(self) -> str:
        """What it reads along them; see `SweepResult.curve`."""
        return "probability"

    def curves(self, result: SweepResult) -> dict[Order, Tensor]:
        """The curves that it reads, as it reads them: by order, (B, T + 1)."""
        found = {order: result.curve(order, self.output, self.scored) for order in self.orders}
        return {order: curve.flip(1) if self.inserted else curve for order, curve in found.items()}

    @property
    def scored(self) -> str:
        """The class whose output is read; where a protocol does not say, a hit is the label."""
        return str(getattr(self.protocol, "scored", "label"))
