"""Truth, sign: do parts against the class score below 0, and parts for it above?"""

import torch
from torch import Tensor

from mhex.metrics.truth import CLEAR, IGNORED, PartScores, TruthMetric, part_means, register_truth


def truth_sign(parts: PartScores, least: float = 0.5) -> Tensor:
    """Share of the parts for the class with a mean score above 0, and of those against it with one below 0, (B,).

    The mean of both shares; against the class are parts with minus a tenth of the largest worth or less. NaN where
    nothing speaks against the class, or the sample does not count.
    """

    def agreement(scores: Tensor, members: Tensor, worth: Tensor) -> Tensor:
        means = part_means(scores, members)
        against = worth <= -CLEAR * worth.abs().max()
        if not bool(against.any()):
            return torch.tensor(torch.nan)
        support = worth >= least * worth.max()
        return ((means[support] > 0).double().mean() + (means[against] < 0).double().mean()) / 2

    return parts.each(agreement)


@register_truth(
    "truth-sign",
    function=truth_sign,
    title="Do parts against the class score below 0, and parts for it above?",
    paper="Signed agreement with worth by intervention",
    traps="A map without signs has 0.5. Only inputs with a part against the class count.",
)
class TruthSign(TruthMetric):
    """Mean over inputs; higher is better."""

    skips = f"nothing against the class, {IGNORED}"
