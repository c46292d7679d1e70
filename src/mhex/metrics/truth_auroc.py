"""Truth, AUROC: do pixels or words of the evidence score higher than all others?"""

import torch
from torch import Tensor

from mhex.metrics.truth import PartScores, TruthMetric, evidence, register_truth


def truth_auroc(parts: PartScores, least: float = 0.5) -> Tensor:
    """Probability that a unit of the evidence scores higher than one outside, ties counting half, (B,).

    NaN where a sample does not count, or all of it is evidence.
    """

    def area(scores: Tensor, members: Tensor, worth: Tensor) -> Tensor:
        inside = evidence(members, worth, least)
        outside = scores[~inside].sort().values
        below = torch.searchsorted(outside, scores[inside])
        most = torch.searchsorted(outside, scores[inside], right=True)
        return (below + most).double().mean() / (2 * len(outside)) if len(outside) else torch.tensor(torch.nan)

    return parts.each(area)


@register_truth(
    "truth-auroc",
    function=truth_auroc,
    title="Do pixels or words of the evidence score higher than all others?",
    paper="Arras, Osman & Samek, CLEVR-XAI, Information Fusion 2022, arXiv:2003.07258 (kin: ground truth by questions)",
    traps="0.5 is chance. A map at the outlines of the evidence loses what is inside of them.",
)
class TruthAuroc(TruthMetric):
    """Mean over inputs; higher is better."""
