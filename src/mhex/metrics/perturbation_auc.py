"""Perturbation AUC: accuracy while the most, or the least, important units are removed first."""

import torch
from torch import Tensor

from mhex.metrics import register_metric
from mhex.metrics.curve import CurveMetric, HitProtocol
from mhex.perturb import STRATA, SweepResult


def perturbation_auc(result: SweepResult, rule: str = "unit") -> Tensor:
    """`area_k [argmax f(x_k) = y]` with the most and with the least important units removed first, (B, 2).

    Args:
        result: Result of a sweep of both orders, with labels.
        rule: How the area is taken.
    """
    return torch.stack([result.area(order, "hit", "label", rule) for order in ("mif", "lif")], 1)


@register_metric(
    "perturbation-auc",
    function=perturbation_auc,
    title="How does accuracy fall when the most important pixels go first, and hold when the least important do?",
    paper="Chefer, Gur & Wolf, CVPR 2021, arXiv:2012.09838",
    passes="2 T - 1 F; less by each order of the same sweep that another metric reads",
    traps="A hit is always the label, also where the predicted class was explained. Images that are wrong at first "
    "count too, with 0 but where a changed image happens to be right: `positive_on_correct` and `negative_on_correct` "
    "leave them out. Accuracy knows no margin.",
    data=("label",),
    presets={
        "default": HitProtocol("black", 20),
        "text": HitProtocol("drop", 20, "token"),
        "quick": HitProtocol("black", STRATA, grid="random"),
        "quick-text": HitProtocol("drop", STRATA, "token", grid="random"),
        "che": HitProtocol("black", 10, area="che"),
        "gt": HitProtocol("black", 10, area="che"),
        "tm": HitProtocol("black", 20),
    },
)
class PerturbationAUC(CurveMetric):
    """Areas under accuracy: `negative - positive`, `positive` (lower is better), `negative`; and where it was right."""

    columns = ("positive", "negative", "correct")
    outputs = ("difference", "positive", "negative", "positive_on_correct", "negative_on_correct")
    better = (True, False, True, False, True)

    @property
    def output(self) -> str:
        return "hit"

    def score(self, result: SweepResult) -> Tensor:
        return torch.cat([super().score(result), result.curve("mif", "hit", "label")[:, :1]], 1)

    def summary(self, rows: Tensor) -> Tensor:
        """Means over all images, and over those that were right."""
        positive, negative = rows[..., :2].mean(-2).unbind(-1)
        right = rows[..., 2:]
        on_correct = (rows[..., :2] * right).sum(-2) / right.sum(-2)
        return torch.cat([torch.stack([negative - positive, positive, negative], -1), on_correct], -1)
