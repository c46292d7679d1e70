"""Truth, first: is the part with the highest mean score one that the model uses?"""

from torch import Tensor

from mhex.metrics.truth import PartScores, TruthMetric, part_means, register_truth


def truth_first(parts: PartScores, least: float = 0.5) -> Tensor:
    """`[argmax_o mean S(o) has worth]`, (B,); of equal maxima, the share. NaN where a sample does not count."""

    def hit(scores: Tensor, members: Tensor, worth: Tensor) -> Tensor:
        means = part_means(scores, members)
        return (worth >= least * worth.max())[means == means.max()].double().mean()

    return parts.each(hit)


@register_truth(
    "truth-first",
    function=truth_first,
    title="Is the part with the highest mean score one that the model uses?",
    paper="Kim et al., BAM, 2019, arXiv:1907.09701; Zhou et al., AAAI 2022, arXiv:2104.14403 (kin: planted evidence)",
    traps="By chance it is the share of parts that have worth; what lies outside of all parts is not seen.",
)
class TruthFirst(TruthMetric):
    """Share of inputs; higher is better."""

    hits = True
