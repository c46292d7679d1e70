"""Truth, mass: how much of the map lies on the evidence?"""

import torch
from torch import Tensor

from mhex.metrics.truth import PartScores, TruthMetric, evidence, register_truth


def truth_mass(parts: PartScores, least: float = 0.5) -> Tensor:
    """`sum_evidence |S| / sum |S|`, (B,); 0 for a map of zeros. NaN where a sample does not count."""

    def share(scores: Tensor, members: Tensor, worth: Tensor) -> Tensor:
        mass = scores.abs()
        return mass[evidence(members, worth, least)].sum() / mass.sum().clamp_min(torch.finfo(mass.dtype).tiny)

    return parts.each(share)


@register_truth(
    "truth-mass",
    function=truth_mass,
    title="How much of the map lies on the evidence?",
    paper="Arras, Osman & Samek, CLEVR-XAI, Information Fusion 2022, arXiv:2003.07258 (relevance mass accuracy)",
    traps="Rewards contrast: the square of a map has more mass at its peak and the same order.",
)
class TruthMass(TruthMetric):
    """Mean over inputs; higher is better."""
