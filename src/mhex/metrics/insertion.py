"""Insertion: how soon the class is found when the most important units come first."""

from torch import Tensor

from mhex.metrics import register_metric
from mhex.metrics.curve import CurveMetric, CurveProtocol
from mhex.perturb import STRATA, SweepResult


def insertion(result: SweepResult, scored: str = "explained", rule: str = "unit") -> Tensor:
    """`area_k p_c(x_k)`, the most important units put into the reference first, (B,).

    Putting in is removing the least important ones, read backwards.

    Args:
        result: Result of a sweep with the order `"lif"`.
        scored: Whose probability is read.
        rule: How the area is taken.
    """
    return result.area("lif", "probability", scored, rule, inserted=True)


@register_metric(
    "insertion",
    function=insertion,
    title="How soon is the class found when the most important pixels are put in first?",
    paper="Petsiuk, Das & Saenko, RISE, BMVC 2018, arXiv:1806.07421",
    passes="T F; 0 beside a metric that reads the same order of the same sweep",
    traps="A reference that still shows the class, such as a weak blur, lifts every curve. With another reference than "
    "for deletion, the two numbers cannot be compared.",
    presets={
        "default": CurveProtocol("mean", 100),
        "text": CurveProtocol("drop", 20, "token"),
        "quick": CurveProtocol("mean", STRATA, grid="random"),
        "quick-text": CurveProtocol("drop", STRATA, "token", grid="random"),
        "rise": CurveProtocol("blur", 224, scored="predicted", sigma=5.0, radius=5),
        "mhex": CurveProtocol("mean", 100, scored="label", area="left100"),
    },
)
class Insertion(CurveMetric):
    """Area under the insertion curve of the probability; higher is better."""

    orders = ("lif",)
    inserted = True
