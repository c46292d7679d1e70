"""Comprehensiveness: what is lost without the most important words."""

from __future__ import annotations

from torch import Tensor

from mhex.metrics._shares import ShareMetric, ShareProtocol, ShareResult
from mhex.metrics.registry import register_metric


def comprehensiveness(result: ShareResult, scored: str = "predicted") -> Tensor:
    """`p(x) - p(x without the share)` for each share of the most important units, (B, K).

    Args:
        result: Of passes with shares removed.
        scored: Whose probability is read.
    """
    before, without, _ = result.of(scored)
    return before - without


@register_metric(
    "comprehensiveness",
    function=comprehensiveness,
    title="How much of the class probability is lost without the most important words?",
    paper="DeYoung et al., ERASER, ACL 2020, arXiv:1911.03429",
    passes="10 F at most with sufficiency; 0 beside a sweep of 1 % with the same reference, "
    "but for texts of an odd number of words above 50",
    traps="Deleting words moves the others up ('drop'); not attending to them does not ('pad'); and a model that was "
    "trained with a mask token hardly misses a masked word ('mask_token'). Compare two of them.",
    modalities=("text",),
    presets={
        "default": ShareProtocol(),
        "eraser": ShareProtocol(),
        "mask_token": ShareProtocol("mask_token"),
    },
)
class Comprehensiveness(ShareMetric):
    """Mean over the shares; higher is better."""

    def score(self, result: ShareResult) -> Tensor:
        """Per text."""
        return comprehensiveness(result, self.protocol.scored).mean(1)
