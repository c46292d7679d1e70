"""The words around a picture: percentages, values, what a colour means, and what to say of a map that shows nothing."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mhex.errors import ArgumentError
from mhex.explanation import Explanation

SCALE_NOTE = "Each map is scaled on its own, so colours compare within a map."
_NAME = 28  # letters of a class among the predictions of several samples
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


def number(value: float) -> str:
    """A value in three digits, written out where that is short: `3.21`, `12400`, `1.2e-05`."""
    return f"{value:.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.3g}"


def target_kind(explanation: Explanation) -> str:
    """What the targets are, in one word: `"class"`, `"output"`, `"concept"`, or `"target"` for a function."""
    if explanation.target is None:
        return "concept" if explanation.named else "target"
    return "output" if explanation.task == "regression" else "class"


def target_label(explanation: Explanation, sample: int, target: int) -> tuple[str, str]:
    """Name of a target and what the model says of it: a class's probability, an output's value, a similarity."""
    name = " ".join(explanation.target_names(sample)[target].split())
    probability = explanation.target_probabilities(sample)[target]
    if probability is not None:
        return name, percent(probability)
    if explanation.values is None:
        return name, ""
    mark = "similarity" if target_kind(explanation) == "concept" else "="
    return name, f"{mark} {number(explanation.target_values(sample)[target])}"


def prediction_note(explanation: Explanation, samples: Sequence[int]) -> str:
    """A sentence on what the model predicts for the samples that are drawn, whatever class is explained."""
    parts = []
    for sample in samples:
        if (found := explanation.prediction(sample)) is None:
            continue
        name = " ".join(found[0].split())
        if len(samples) > 1:
            name = f"sample {sample} {name if len(name) <= _NAME else name[: _NAME - 1].rstrip(' ,') + '…'}"
        parts.append(f"{name} {percent(found[1])}")
    mark = "Most probable" if explanation.task == "multi-label" else "Predicted"
    return f"{mark}: {'; '.join(parts)}." if parts else ""


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


def legend(explanation: Explanation, names: Collection[str] = ()) -> Legend:
    """What the colours of an explanation mean.

    Args:
        explanation: Where the scores come from.
        names: Names of the targets drawn; a single one is named in the legend.
    """
    kind = target_kind(explanation)
    name = next(iter(names)) if len(names) == 1 and kind != "target" else f"the {kind}"
    if not explanation.class_specific:
        return Legend(explanation.signed, "least", f"most important, for any {kind}")
    if kind == "concept":
        low, high, most = f"unlike {name}", f"like {name}", f"most like {name}"
    elif explanation.task == "regression":
        low, high, most = f"lowers {name}", f"raises {name}", f"raises {name} most"
    else:
        low, high, most = f"against {name}", f"for {name}", f"most evidence for {name}"
    return Legend(True, low, high) if explanation.signed else Legend(False, "least", most)


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
