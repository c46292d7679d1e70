"""Protocols: how a number was measured, as frozen data that is printed beside it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from mhex.perturb import PerturbationSweep


@dataclass(frozen=True)
class Protocol:
    """Base of all protocols."""

    def __str__(self) -> str:
        return ", ".join(f"{f.name}={_short(getattr(self, f.name))}" for f in fields(self))


@dataclass(frozen=True)
class CurveProtocol(Protocol):
    """Of metrics that read a curve of the sweep.

    Attributes:
        reference: What removed means; see `PerturbationSweep`.
        steps: T.
        scored: Whose output is read: that of the `"explained"` class, of the `"predicted"` one or of the `"label"`.
        area: How the area under the curve is taken; see `mhex.perturb.area`.
        granularity: What is ranked: `"pixel"`, `"patch"`, `"token"` or `"word"`.
        tie: How equal scores are ranked.
        seed: Of ties.
        sigma: Of the blur.
        radius: Of its kernel, 2 radius + 1 pixels wide; None for three times sigma.
    """

    reference: str = "blur"
    steps: int = 20
    scored: str = "explained"
    area: str = "unit"
    granularity: str = "pixel"
    tie: str = "random"
    seed: int = 0
    sigma: float | None = None
    radius: int | None = None

    @property
    def sweep(self) -> PerturbationSweep:
        """The passes that it needs, in both orders; a metric may read one of them alone."""
        return PerturbationSweep(
            reference=self.reference,
            granularity=self.granularity,
            steps=self.steps,
            tie=self.tie,  # type: ignore[arg-type]
            seed=self.seed,
            sigma=self.sigma,
            radius=self.radius,
        )


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
