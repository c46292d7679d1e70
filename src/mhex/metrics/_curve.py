"""What the metrics that read one sweep share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from mhex.metrics._base import PerImage
from mhex.metrics.case import Case
from mhex.metrics.protocols import SweepProtocol
from mhex.perturb import ORDERS, Order, PerturbationSweep


class CurveMetric(PerImage):
    """A metric of the curves of one sweep.

    Attributes:
        orders: Those that it reads; no others are made for it.
    """

    orders: ClassVar[tuple[Order, ...]] = ORDERS
    protocol: SweepProtocol

    @property
    def sweep(self) -> PerturbationSweep:
        """The passes that it needs."""
        return replace(self.protocol.sweep, orders=self.orders)

    def of(self, case: Case) -> tuple[Any, ...]:
        """The sweep of the protocol."""
        return (case.sweep(self.sweep),)
