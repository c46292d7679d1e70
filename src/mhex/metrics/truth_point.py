"""Truth, point: is the highest score of the whole map on a part that the model uses?"""

from torch import Tensor

from mhex.metrics.truth import PartScores, TruthMetric, evidence, register_truth


def truth_point(parts: PartScores, least: float = 0.5) -> Tensor:
    """`[argmax S in evidence]`, (B,); of equal maxima, the share inside. NaN where a sample does not count."""
    return parts.each(
        lambda scores, members, worth: evidence(members, worth, least)[scores == scores.max()].double().mean()
    )


@register_truth(
    "truth-point",
    function=truth_point,
    title="Is the highest score of the map on a part that the model uses?",
    paper="Zhang et al., Excitation Backprop, ECCV 2016, arXiv:1608.00507 (the pointing game, with measured evidence)",
    traps="Looks at one point, so it is noisy; a coarse map is brought to the pixels by interpolation.",
)
class TruthPoint(TruthMetric):
    """Share of inputs; higher is better."""

    hits = True
