"""Fidelity: areas under the logit, with the most and with the least important units removed first."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mhex.metrics import register_metric
from mhex.metrics.curve import CurveMetric, CurveProtocol
from mhex.perturb import STRATA, SweepResult, area


@dataclass(frozen=True)
class FidelityProtocol(CurveProtocol):
    """Protocol of areas under the logit, `centred` if the mean of all is taken off: models can be compared then."""

    centred: bool = False


def fidelity(result: SweepResult, scored: str = "explained", rule: str = "percent", centred: bool = False) -> Tensor:
    """`A_LIF - A_MIF`, `A_MIF` and `A_LIF`, areas under the logit of a class, (B, 3).

    Args:
        result: Result of a sweep of both orders.
        scored: Whose logit is read.
        rule: How areas are taken.
        centred: Logits less the mean of all classes, so that models can be compared.
    """
    output = "centred-logit" if centred else "logit"
    first, last = (result.area(order, output, scored, rule) for order in ("mif", "lif"))
    return torch.stack([last - first, first, last], 1)


@register_metric(
    "fidelity",
    function=fidelity,
    title="Does the logit fall when the most important pixels are blurred, and stay when the least important are?",
    paper="Brocki, Binda & Chung, CDAM, 2023, arXiv:2312.02364; SRG: Bluecher et al., 2024, arXiv:2401.06654",
    passes="2 T - 1 F; less by each order of the same sweep that another metric reads",
    traps="Logits have no common zero: areas of different models cannot be compared, unless `centred` is chosen. A "
    "blurred image still shows large things.",
    presets={
        "default": FidelityProtocol("blur", 20, area="percent"),
        "text": FidelityProtocol("drop", 20, "token", area="percent"),
        "quick": FidelityProtocol("blur", STRATA, area="percent", grid="random"),
        "quick-text": FidelityProtocol("drop", STRATA, "token", area="percent", grid="random"),
        "cdam": FidelityProtocol("blur", 20, area="percent"),
    },
)
class Fidelity(CurveMetric):
    """`A_LIF - A_MIF` (higher is better), `A_MIF` (lower), `A_LIF` (higher) and `SRG`, the mean gap of both curves."""

    columns = ("difference", "mif", "lif")
    outputs = ("difference", "mif", "lif", "srg")
    better = (True, False, True, True)
    protocol: FidelityProtocol

    @property
    def output(self) -> str:
        return "centred-logit" if self.protocol.centred else "logit"

    def summary(self, rows: Tensor) -> Tensor:
        """Means, and the first over the area under a curve that is 1 everywhere: 100 by the rule `percent`."""
        means = rows.mean(-2)
        full_area = area(torch.ones(1, self.protocol.steps + 1), self.protocol.area)
        return torch.cat([means, means[..., :1] / full_area.to(means)], -1)
