"""Deletion: how soon the class is lost when the most important units go first."""

from torch import Tensor

from mhex.metrics import register_metric
from mhex.metrics.curve import CurveMetric, CurveProtocol
from mhex.perturb import STRATA, SweepResult


def deletion(result: SweepResult, scored: str = "explained", rule: str = "unit") -> Tensor:
    """`area_k p_c(x_k)`, the most important units removed first, (B,).

    Args:
        result: Result of a sweep with the order `"mif"`.
        scored: Whose probability is read.
        rule: How the area is taken.
    """
    return result.area("mif", "probability", scored, rule)


@register_metric(
    "deletion",
    function=deletion,
    title="How soon is the class lost when the most important pixels are removed first?",
    paper="Petsiuk, Das & Saenko, RISE, BMVC 2018, arXiv:1806.07421",
    passes="T F; 0 beside a metric that reads the same order of the same sweep",
    traps="Scattered removed pixels look like nothing that the model has seen, and edges alone can lower the score: "
    "compare two references, and look at insertion too. Masks made of the reference favour methods that hide parts "
    "themselves, such as RISE and occlusion.",
    presets={
        "default": CurveProtocol("mean", 100),
        "text": CurveProtocol("drop", 20, "token"),
        "quick": CurveProtocol("mean", STRATA, grid="random"),
        "quick-text": CurveProtocol("drop", STRATA, "token", grid="random"),
        "rise": CurveProtocol("zero", 224, scored="predicted"),
        "mhex": CurveProtocol("mean", 100, scored="label", area="left100"),
    },
)
class Deletion(CurveMetric):
    """Area under the deletion curve of the probability; lower is better."""

    better = (False,)
    orders = ("mif",)
