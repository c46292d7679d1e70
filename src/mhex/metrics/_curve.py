"""What the metrics that read one sweep share."""

from __future__ import annotations

from typing import Any

from mhex.metrics._base import PerImage
from mhex.metrics.case import Case
from mhex.metrics.protocols import SweepProtocol


class CurveMetric(PerImage):
    """A metric of the curves of one sweep."""

    protocol: SweepProtocol

    def of(self, case: Case) -> tuple[Any, ...]:
        """The sweep of the protocol."""
        return (case.sweep(self.protocol.sweep),)
