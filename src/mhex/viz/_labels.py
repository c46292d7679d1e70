"""The words around a picture: percentages, titles, what a colour means, and what to say of a map that shows nothing."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mhex.errors import ArgumentError
from mhex.explanation import Explanation
from mhex.registry import all_methods

SCALE_NOTE = "Each map is scaled on its own, so colours compare within a map."
TEXT_SCALE_NOTE = "Each text is scaled on its own, so colours compare within a text."


@dataclass(frozen=True)
class Legend:
    """A colour bar and the words at its two ends."""

    signed: bool
    left: str
    right: str


def percent(probability: float) -> str:
    """A probability in words that never round to impossible or certain: `83 %`, `0.4 %`, `>99.9 %`."""
    value = 100 * probability
    if 0 < value < 0.1:
        return "<0.1 %"
    if 99.9 < value < 100:
        return ">99.9 %"
    return f"{value:.1f} %" if 0 < value < 0.95 or 99.5 <= value < 100 else f"{value:.0f} %"


def target_label(explanation: Explanation, sample: int, target: int) -> tuple[str, str]:
    """Name of a target and its probability in words; the latter is empty for a target that is a function."""
    name = " ".join(explanation.target_names(sample)[target].split())
    probability = explanation.target_probabilities(sample)[target]
    return name, "" if probability is None else percent(probability)


def target_scores(explanation: Explanation, sample: int, target: int) -> Tensor:
    """Raw scores of one sample and target on the CPU in float32: (h, w) or (T,)."""
    scores = explanation.scores[sample, target] if explanation.several else explanation.scores[sample]
    return scores.detach().float().cpu()


def remark(explanation: Explanation, sample: int, target: int) -> str:
    """What a reader must know of a map that carries no information; empty for an ordinary one."""
    scores = target_scores(explanation, sample, target)
    if not bool(torch.isfinite(scores).all()):
        return "not finite"
    if not bool(scores.any()):
        return "all zero"
    # Text scores are zero at special tokens and padding, so only maps of images can be told to be constant.
    constant = explanation.modality == "image" and bool((scores == scores.flatten()[0]).all())
    return "constant" if constant else ""


def class_specific(explanation: Explanation) -> bool:
    """False if the method gives every class the same scores, so that a picture must not promise evidence for one."""
    method = all_methods().get(explanation.method)
    return method is None or method.class_specific


def legend(explanation: Explanation, names: Collection[str] = ()) -> Legend:
    """What the colours of an explanation mean.

    Args:
        explanation: Where the scores come from.
        names: Names of the targets drawn; a single one is named in the legend.
    """
    name = next(iter(names)) if len(names) == 1 else "the class"
    if explanation.target is None:
        name = "the target"
    if not class_specific(explanation):
        return Legend(explanation.signed, "least", "most important, for any class")
    if explanation.signed:
        return Legend(True, f"against {name}", f"for {name}")
    return Legend(False, "least", f"most evidence for {name}")


def target_count(explanation: Explanation) -> int:
    """Number of targets K; 1 if the scores have no such axis."""
    return int(explanation.scores.shape[1]) if explanation.several else 1


def choose(wanted: Sequence[int] | None, count: int, most: int, what: str, call: str = "") -> tuple[list[int], str]:
    """Which samples or targets to draw, and a sentence on those left out.

    Args:
        wanted: Asked for by the user, all of them drawn; None for the first `most`.
        count: How many there are.
        most: The largest number drawn unasked.
        what: `"samples"` or `"targets"`, also the argument that chooses them.
        call: The function that takes this argument, for the sentence.

    Raises:
        ArgumentError: If nothing is left to draw, or one asked for does not exist.
    """
    if wanted is None:
        if count <= most:
            return list(range(count)), ""
        more = f"; {call}(..., {what}=range({most}, {min(2 * most, count)})) draws more" if call else ""
        return list(range(most)), f"The first {most} of {count} {what} are drawn{more}."
    chosen = [int(i) for i in wanted]
    if not chosen or any(not 0 <= i < count for i in chosen):
        raise ArgumentError(f"Expected {what} between 0 and {count - 1}, at least one, but got {chosen}.")
    return chosen, ""
