"""AOPC: how much probability is lost on the way, with the most important units removed first."""

from torch import Tensor

from mhex.metrics import register_metric
from mhex.metrics.curve import CurveMetric, ScoredProtocol
from mhex.perturb import SweepResult


def aopc(result: SweepResult, scored: str = "predicted", first: bool = True) -> Tensor:
    """`1 / |K| sum_k (p(x) - p(x_k))`, the most important units removed first, (B,).

    Args:
        result: Result of a sweep with the order `"mif"`.
        scored: Whose probability is read.
        first: Whether the first term, which is 0, counts in `|K|`.
    """
    curve = result.curve("mif", "probability", scored)
    return (curve[:, :1] - curve)[:, 0 if first else 1 :].mean(1)


@register_metric(
    "aopc",
    function=aopc,
    title="How much probability is lost on the way, with the most important pixels removed first?",
    paper="Samek et al., TNNLS 2017, arXiv:1509.06321",
    passes="T F; 0 beside a metric that reads the same order of the same sweep",
    traps="Removed pixels may take the image out of what the model knows, and any probability falls then. Published "
    "code differs in whether the first term counts, in signs and in the class scored.",
    presets={
        "default": ScoredProtocol("black", 20, scored="predicted"),
        "text": ScoredProtocol("drop", 20, "token", scored="predicted"),
        "tm": ScoredProtocol("black", 20, scored="predicted"),
    },
)
class AOPC(CurveMetric):
    """Mean drop of the probability over the steps; higher is better."""

    orders = ("mif",)
