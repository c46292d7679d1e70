"""ROAD: removal that leaves no holes, so that a class is not lost by odd-looking images alone."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mhex._settings import check_that
from mhex.metrics import register_metric
from mhex.metrics.curve import CurveMetric, ScoredProtocol
from mhex.perturb import SweepResult

_TENTHS = tuple(f"{order}_{share}" for order in ("mif", "lif") for share in range(10, 100, 10))


@dataclass(frozen=True)
class RoadProtocol(ScoredProtocol):
    """Protocol of curves under imputation; a `hit` is that the predicted class stays on top, or that the label is."""

    reference: str = "impute"
    steps: int = 10
    hit: Literal["predicted", "label"] = "predicted"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_that(self.steps % 10 == 0, "a multiple of 10 steps", self.steps)


def road(result: SweepResult, scored: str = "explained") -> Tensor:
    """`mean_q (p_LIF - p_MIF) / 2` over the shares 10 to 90 % removed, from -0.5 to 0.5, (B,).

    Args:
        result: Result of a sweep of both orders, with a multiple of 10 steps.
        scored: Whose probability is read.
    """
    first, last = (_tenths(result, order, "probability", scored) for order in ("mif", "lif"))
    return (last - first).mean(1) / 2


def _tenths(result: SweepResult, order: str, output: str, scored: str) -> Tensor:
    """A curve at 10, 20 ... 90 %, (B, 9)."""
    steps = result.runner.steps
    check_that(steps % 10 == 0, "a multiple of 10 steps", steps)
    return result.curve(order, output, scored)[:, :: steps // 10][:, 1:-1]


@register_metric(
    "road",
    function=road,
    title="Does the class go with the most important pixels and stay without the least, when removed pixels are filled "
    "in from around them?",
    paper="Rong et al., ROAD, ICML 2022, arXiv:2202.00449",
    passes="19 F and 18 systems of equations; less by each order of the same sweep that another metric reads",
    traps="Other packages count the kept share, or read raw outputs, or report accuracy alone: values differ. Large "
    "regions are filled in smoothly, and what is removed last shows through.",
    modalities=("image",),
    presets={"default": RoadProtocol(), "road": RoadProtocol(scored="predicted", hit="label")},
)
class ROAD(CurveMetric):
    """Half the gap between both orders (higher is better), and accuracy at each share removed (`mif_10` ...)."""

    columns = ("value", *_TENTHS)
    better = (True, *(name.startswith("lif") for name in _TENTHS))
    protocol: RoadProtocol

    def score(self, result: SweepResult) -> Tensor:
        hits = [_tenths(result, order, "hit", self.protocol.hit) for order in ("mif", "lif")]
        return torch.cat([super().score(result)[:, None], *hits], 1)
