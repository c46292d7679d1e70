"""Sufficiency: what is missing if only the most important words are left."""

from torch import Tensor

from mhex.metrics import register_metric
from mhex.metrics.comprehensiveness import ShareMetric, ShareProtocol, ShareResult


def sufficiency(result: ShareResult, scored: str = "predicted") -> Tensor:
    """`p(x) - p(the share alone)` for each share of the most important units, (B, K).

    Args:
        result: Result of passes with shares kept alone.
        scored: Whose probability is read.
    """
    before, _, alone = result.of(scored)
    return before - alone


@register_metric(
    "sufficiency",
    function=sufficiency,
    title="How much of the class probability is missing if only the most important words are left?",
    paper="DeYoung et al., ERASER, ACL 2020, arXiv:1911.03429",
    passes="10 F at most with comprehensiveness; 0 beside a sweep of 1 % with the same reference, "
    "but for texts of an odd number of words above 50",
    traps="A few words alone are no text that the model has seen. Below 0 where they convince more than the whole. "
    "See comprehensiveness for the references.",
    modalities=("text",),
    presets={"default": ShareProtocol(), "eraser": ShareProtocol(), "mask_token": ShareProtocol("mask_token")},
)
class Sufficiency(ShareMetric):
    """Mean over the shares; lower is better."""

    better = (False,)
