"""Truth, rank: are parts ranked as their worth to the model ranks them?"""

import torch
from torch import Tensor

from mhex.metrics.truth import CLEAR, IGNORED, PartScores, TruthMetric, WorthProtocol, part_means, register_truth


def truth_rank(parts: PartScores) -> Tensor:
    """Somers' D of mean scores with respect to worth, from -1 to 1, (B,).

    Over the pairs of parts whose worth differs by more than a tenth of the largest; a pair that the map scores equally
    counts 0. NaN where there is no such pair, or the sample does not count.
    """

    def somers(scores: Tensor, members: Tensor, worth: Tensor) -> Tensor:
        means = part_means(scores, members)
        steps = worth[:, None] - worth
        clear = steps > CLEAR * worth.abs().max()
        return (means[:, None] - means).sign()[clear].mean() if bool(clear.any()) else torch.tensor(torch.nan)

    return parts.each(somers)


@register_truth(
    "truth-rank",
    function=truth_rank,
    title="Are parts ranked as their worth to the model ranks them?",
    paper="Somers, American Sociological Review 27, 1962 (D); worth by intervention",
    traps="Maps that only say how much, and not for or against, rank parts against the class wrongly.",
    protocol=WorthProtocol,
)
class TruthRank(TruthMetric):
    """Mean over inputs; higher is better."""

    skips = f"no two parts of different worth, {IGNORED}"
