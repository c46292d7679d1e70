"""What the metrics of one pass with a part hidden share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mhex.errors import ArgumentError
from mhex.metrics._base import PerImage
from mhex.metrics.case import Case
from mhex.metrics.protocols import Protocol, blur_only
from mhex.perturb import MaskedPass
from mhex.perturb.references import PIXELS, WORDS


@dataclass(frozen=True)
class HiddenProtocol(Protocol):
    """Of metrics of one pass over images with a part hidden.

    Attributes:
        reference: What hidden means: `"black"`, `"zero"`, `"mean"` or `"blur"`.
        scored: Whose probability is read: the `"explained"` class's, the `"predicted"` one's or the `"label"`'s.
        sigma: Of the blur.
    """

    reference: str = "zero"
    scored: str = "explained"
    sigma: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reference not in PIXELS[:-1]:
            texts = f"; {self.reference!r} is of texts, for which average-drop has the preset 'text'"
            raise ArgumentError(
                f"Expected the reference to be one of {', '.join(PIXELS[:-1])}, but got {self.reference!r}"
                f"{texts if self.reference in WORDS else ''}."
            )

    @property
    def idle(self) -> dict[str, str]:
        return blur_only(self.reference, "sigma")

    @property
    def runner(self) -> MaskedPass:
        """The pass that it needs."""
        raise NotImplementedError

    @property
    def passes(self) -> tuple[Any, ...]:
        return (self.runner,)


@dataclass(frozen=True)
class RegionProtocol(HiddenProtocol):
    """Of metrics that hide or keep a region.

    Attributes:
        mode: As for `MaskedPass`.
        threshold: Above it a map scaled from 0 to 1 is salient; soft modes have none.
    """

    mode: str = "remove"
    threshold: float = 0.5

    @property
    def idle(self) -> dict[str, str]:
        soft = {"threshold": f"pixels fade as far as the map says, because mode is {self.mode!r}"}
        return super().idle | (soft if self.mode.startswith("soft") else {})

    @property
    def runner(self) -> MaskedPass:
        return MaskedPass(self.mode, self.reference, self.threshold, sigma=self.sigma)


class DropMetric(PerImage):
    """A metric of one pass with a part hidden."""

    protocol: Any

    def of(self, case: Case) -> tuple[Any, ...]:
        """The pass of the protocol."""
        runner: MaskedPass = self.protocol.runner
        return (case.once(runner, lambda: runner(case.subject, None, case.saliency, case.explained)),)
