"""What a picture says about an explanation in words: names of targets, predictions, legends and notes."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from mhex._settings import check_that
from mhex.errors import ArgumentError, ArgumentTypeError

SCALE_NOTE = "Each map is scaled on its own, so colours compare within a map."
TEXT_SCALE_NOTE = "Each text is scaled on its own, so colours compare within a text."
_EFFECTS = {
    "concept": ("unlike {}", "like {}", "most like {}", "likeness to {}"),
    "output": ("lowers {}", "raises {}", "raises {} most", "what raises {}"),
    **dict.fromkeys(("class", "target"), ("against {}", "for {}", "most evidence for {}", "evidence for {}")),
}
_NAME_LETTERS = 28  # of a class among the predictions of several samples


@runtime_checkable
class Drawable(Protocol):
    """The attributes of an explanation that pictures read; `mhex.Explanation` describes them and has them all."""

    scores: Tensor
    target: Tensor | None
    probabilities: Tensor | None
    values: Tensor | None
    method: str
    options: dict[str, Any]
    signed: bool
    class_specific: bool
    named: list[str] | None
    size: tuple[int, int] | None
    pictures: Any
    tokens: list[list[str]] | None
    words: list[list[int | None]] | None
    real: Tensor | None
    special: Tensor | None
    scored: Tensor | None
    ids: Tensor | None

    @property
    def modality(self) -> str: ...
    @property
    def task(self) -> str: ...
    @property
    def several(self) -> bool: ...
    def target_names(self, sample: int) -> list[str]: ...
    def target_probabilities(self, sample: int) -> list[float | None]: ...
    def target_values(self, sample: int) -> list[float]: ...
    def prediction(self, sample: int) -> tuple[str, float] | None: ...
    def cut(self, sample: int) -> str: ...
    def normalized(self, *, size: tuple[int, int] | None = None) -> Tensor: ...


@dataclass(frozen=True)
class Legend:
    """A colour bar and the words at its two ends."""

    signed: bool
    low: str
    high: str


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


def target_kind(explanation: Drawable) -> str:
    """What the targets are, in one word: `"class"`, `"output"`, `"concept"`, or `"target"` for a function."""
    if explanation.target is None:
        return "concept" if explanation.named else "target"
    return "output" if explanation.task == "regression" else "class"


def target_label(explanation: Drawable, sample: int, target: int) -> tuple[str, str]:
    """Name of a target and what the model says of it: a class's probability, an output's value, a similarity."""
    name = " ".join(explanation.target_names(sample)[target].split())
    probability = explanation.target_probabilities(sample)[target]
    if probability is not None:
        return name, percent(probability)
    if explanation.values is None:
        return name, ""
    mark = "similarity" if target_kind(explanation) == "concept" else "="
    return name, f"{mark} {number(explanation.target_values(sample)[target])}"


def drawn_names(explanation: Drawable, samples: Sequence[int], targets: Sequence[int]) -> set[str]:
    """Names of all targets that a picture draws."""
    return {target_label(explanation, sample, target)[0] for sample in samples for target in targets}


def prediction_note(explanation: Drawable, samples: Sequence[int]) -> str:
    """A sentence on what the model predicts for the samples that are drawn, whatever class is explained."""
    parts = []
    for sample in samples:
        if (prediction := explanation.prediction(sample)) is None:
            continue
        name = " ".join(prediction[0].split())
        if len(samples) > 1:
            short = name if len(name) <= _NAME_LETTERS else name[: _NAME_LETTERS - 1].rstrip(" ,") + "…"
            name = f"sample {sample} {short}"
        parts.append(f"{name} {percent(prediction[1])}")
    mark = "Most probable" if explanation.task == "multi-label" else "Predicted"
    return f"{mark}: {'; '.join(parts)}." if parts else ""


def target_scores(explanation: Drawable, sample: int, target: int) -> Tensor:
    """Raw scores of one sample and target on the CPU in float32: (h, w) or (T,)."""
    scores = explanation.scores[sample, target] if explanation.several else explanation.scores[sample]
    return scores.detach().float().cpu()


def remark(explanation: Drawable, sample: int, target: int) -> str:
    """What a reader must know of a map that carries no information; empty for an ordinary map."""
    scores = target_scores(explanation, sample, target)
    if not bool(torch.isfinite(scores).all()):
        return "not finite"
    if not bool(scores.any()):
        return "all zero"
    # Text scores are zero at special tokens and padding, so only maps of images can be constant.
    constant = explanation.modality == "image" and bool((scores == scores.flatten()[0]).all())
    return "constant" if constant else ""


def effect_words(explanation: Drawable, name: str) -> list[str]:
    """How words put low, high and the highest scores of a target, and what its map shows."""
    kind = target_kind(explanation)
    effects = _EFFECTS["output" if kind != "concept" and explanation.task == "regression" else kind]
    return [words.format(name) for words in effects]


def legend(explanation: Drawable, names: Collection[str] = ()) -> Legend:
    """What the colours of an explanation mean; if `names` holds a single target, the legend names it."""
    kind = target_kind(explanation)
    name = next(iter(names)) if len(names) == 1 and kind != "target" else f"the {kind}"
    if not explanation.class_specific:
        return Legend(explanation.signed, "least", f"most important, for any {kind}")
    low, high, most, _ = effect_words(explanation, name)
    return Legend(True, low, high) if explanation.signed else Legend(False, "least", most)


def legends(explanations: Sequence[Drawable], names: Collection[str] = ()) -> list[Legend]:
    """One legend for unsigned and one for signed maps, as far as there are some; arguments as for `legend`."""
    bars = []
    for signed in (False, True):
        group = [entry for entry in explanations if entry.signed == signed]
        # The legend is that of a method that looks at the target, if the group has one.
        if group:
            bars.append(legend(next((entry for entry in group if entry.class_specific), group[0]), names))
    return bars


def agnostic_note(explanations: Sequence[Drawable]) -> str:
    """A sentence on the methods of a mixed list that do not look at the target."""
    names = list(dict.fromkeys(entry.method for entry in explanations if not entry.class_specific))
    if not names or not any(entry.class_specific for entry in explanations):
        return ""
    verb = "gives" if len(names) == 1 else "give"
    return f"{listed(names)} {verb} every {target_kind(explanations[0])} the same scores."


def listed(names: Sequence[str]) -> str:
    """Names as a sentence has them: `a, b and c`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def choose(choice: Sequence[int] | None, count: int, most: int, noun: str, call: str = "") -> tuple[list[int], str]:
    """Which of `count` samples or targets to draw, and a sentence on those left out.

    All that the user chose are drawn, or else the first `most`. The sentence names the function `call` whose argument
    `noun` draws more.
    """
    if choice is None:
        if count <= most:
            return list(range(count)), ""
        advice = f"; {call}(..., {noun}=range({most}, {min(2 * most, count)})) draws more" if call else ""
        return list(range(most)), f"The first {most} of {count} {noun} are drawn{advice}."
    selection = [int(i) for i in choice]
    if not selection or any(not 0 <= i < count for i in selection):
        raise ArgumentError(f"Expected {noun} between 0 and {count - 1}, at least one, but got {selection}.")
    return selection, ""


def choose_both(
    explanation: Drawable,
    samples: Sequence[int] | None,
    targets: Sequence[int] | None,
    most: int,
    call: str = "",
    most_samples: int | None = None,
) -> tuple[list[int], list[int], list[str]]:
    """Samples and targets to draw, and sentences on those left out; arguments as for `choose`.

    Unasked, at most `most` targets are drawn, and as many samples as make `most` pairs, or `most_samples` of them.
    """
    count = int(explanation.scores.shape[1]) if explanation.several else 1
    columns, more_targets = choose(targets, count, most, "targets", call)
    limit = most_samples or max(1, most // len(columns))
    rows, more_samples = choose(samples, len(explanation.scores), limit, "samples", call)
    return rows, columns, [more_samples, more_targets]


def column_labels(explanations: Sequence[Drawable]) -> list[str]:
    """Names of the methods; where one occurs twice, with the options in which its explanations differ."""
    labels = []
    for explanation in explanations:
        twins = [entry.options for entry in explanations if entry.method == explanation.method]
        differing = [
            f"{name}={value}"
            for name, value in explanation.options.items()
            if any(options.get(name) != value for options in twins)
        ]
        labels.append(" ".join([explanation.method, *differing]))
    return labels


def check_same_input(explanations: Sequence[Drawable], labels: Sequence[str] | None = None) -> None:
    """Refuse a list whose explanations cannot stand side by side."""
    if not explanations:
        raise ArgumentError("Expected at least one explanation to compare, but got an empty list.")
    for entry in explanations:
        if not isinstance(entry, Drawable):
            raise ArgumentTypeError(f"Expected a list of explanations, but it holds {type(entry).__name__}.")
    count = len(explanations if labels is None else labels)
    check_that(count == len(explanations), f"{len(explanations)} labels, one per explanation", count)
    first = explanations[0]
    for entry in explanations[1:]:
        alike = entry.modality == first.modality and len(entry.scores) == len(first.scores)
        is_same = alike and entry.tokens == first.tokens
        advice = "; give mhex.explain the same batch and target="
        actual = f"others of {entry.method!r} than of {first.method!r}"
        check_that(is_same, "explanations of the same input", actual, advice)
        is_same = all(entry.target_names(i) == first.target_names(i) for i in range(len(first.scores)))
        check_that(is_same, "explanations of the same targets", actual, advice)
