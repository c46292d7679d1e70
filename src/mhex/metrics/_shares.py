"""What comprehensiveness and sufficiency share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mhex.metrics._base import PerImage
from mhex.metrics.case import Case
from mhex.metrics.protocols import Protocol
from mhex.perturb import PerturbationSweep, SharePasses


@dataclass(frozen=True)
class ShareProtocol(Protocol):
    """Of metrics of a few shares of the units.

    Attributes:
        reference: What removed means; see `PerturbationSweep`.
        percent: The shares, over which the mean is taken.
        scored: Whose probability is read: the `"explained"` class's, the `"predicted"` one's or the `"label"`'s.
        granularity: What is ranked: `"word"` or `"token"`; of images `"pixel"` or `"patch"`.
        tie: How equal scores are ranked.
        seed: Of ties.
        sigma: Of the blur.
    """

    reference: str = "drop"
    percent: tuple[int, ...] = (1, 5, 10, 20, 50)
    scored: str = "predicted"
    granularity: str = "word"
    tie: str = "random"
    seed: int = 0
    sigma: float | None = None

    @property
    def runner(self) -> SharePasses:
        """The passes that it needs."""
        sweep = PerturbationSweep(
            reference=self.reference,
            granularity=self.granularity,
            steps=100,
            tie=self.tie,  # type: ignore[arg-type]
            seed=self.seed,
            sigma=self.sigma,
        )
        return SharePasses(sweep, self.percent)


class ShareMetric(PerImage):
    """A metric of a few shares of the units."""

    protocol: ShareProtocol

    def of(self, case: Case) -> tuple[Any, ...]:
        """Off a sweep of 1 % where one is there; else two passes for each share, for both metrics."""
        runner = self.protocol.runner
        made = case.made(runner.sweep)
        return (case.passes(runner) if made is None else runner.read(made),)
