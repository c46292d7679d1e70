"""What metrics of known evidence share: what each part of an input is worth to the model, and how a map scores it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import factorial
from typing import Any, Literal

import torch
from torch import Tensor

from mhex._settings import check_that
from mhex.inputs.parts import FORM, InputParts
from mhex.metrics.base import PerImage
from mhex.metrics.case import Case
from mhex.metrics.drops import rounding_of
from mhex.metrics.protocols import Protocol
from mhex.metrics.registry import register_metric
from mhex.perturb import at_size, check_map, text_units

Worth = Literal["removal", "shapley"]
CLEAR = 0.1  # share of the largest worth by which worths must differ to be told apart
_MOST = 10  # parts of an input with Shapley values, which need the input without every subset of them
IGNORED = (  # why samples with parts are skipped
    "a wrong answer, a part that should decide but is worth no more than one that should not, no part with worth, or "
    "a part of the largest worth that the model does not see"
)
_TRAPS = (
    "Needs `parts` in the data. Truth is what this model loses without a part, so inputs without it must be natural to "
    "the model. Inputs with a wrong answer, whose evidence by construction is not what the model uses, or whose parts "
    "are worth no more than rounding are skipped and counted."
)


@dataclass(frozen=True)
class WorthProtocol(Protocol):
    """How the worth of parts is measured."""

    worth: Worth = "removal"  # `y(x) - y(x without the part)`; or Shapley values over the parts


@dataclass(frozen=True)
class TruthProtocol(WorthProtocol):
    """Protocol of metrics that ask where the evidence is."""

    least: float = 0.5  # a part counts as evidence if its worth is at least this share of the largest

    def __post_init__(self) -> None:
        super().__post_init__()
        check_that(0 < self.least <= 1, "a share of the largest worth (least) above 0, and 1 at most", self.least)


@dataclass(frozen=True, eq=False)
class PartScores:
    """Scores of a map at the units of each input, pixels or words, and the worth of its parts."""

    ids: tuple[int, ...]  # number of each sample in its data set
    scores: Sequence[Tensor]  # of the units of each sample, (U,), float64
    members: Sequence[Tensor]  # which units belong to each part, bool (P, U)
    worth: Sequence[Tensor]  # of each part to the explained class, (P,), float64; NaN where a sample does not count

    def each(self, formula: Callable[[Tensor, Tensor, Tensor], Tensor | float]) -> Tensor:
        """A number of each sample, (B,), by a formula of its scores, members and worth; NaN where it does not count."""
        values = []
        for scores, members, worth in zip(self.scores, self.members, self.worth, strict=True):
            counts = len(worth) > 0 and bool(worth.isfinite().all()) and float(worth.max()) > 0
            values.append(float(formula(scores, members, worth)) if counts else torch.nan)
        return torch.tensor(values, dtype=torch.float64)


def evidence(members: Tensor, worth: Tensor, least: float) -> Tensor:
    """Units of the parts whose worth is at least this share of the largest, bool (U,)."""
    return members[worth >= least * worth.max()].any(0)


def part_means(scores: Tensor, members: Tensor) -> Tensor:
    """Mean score over each part, (P,)."""
    return (members.double() @ scores) / members.sum(1)


class TruthMetric(PerImage):
    """A metric of a map and of what parts are worth to the model."""

    skips = f"no parts, {IGNORED}"
    protocol: WorthProtocol

    def of(self, case: Case) -> tuple[Any, ...]:
        return (case.once(("part scores", self.protocol.worth), lambda: part_scores(case, self.protocol.worth)),)


def register_truth(name: str, *, traps: str, protocol: type[WorthProtocol] = TruthProtocol, **facts: Any) -> Any:
    """Register a metric of known evidence, as `register_metric` does, with what all of them share."""
    facts |= {"passes": "F per part", "traps": f"{_TRAPS} {traps}", "data": ("parts",)}
    return register_metric(name, presets={"default": protocol(), "shapley": protocol("shapley")}, **facts)


def part_scores(case: Case, kind: Worth) -> PartScores:
    """Scores of the map at all units, and the worth of parts, which is measured once for all maps of a class."""
    parts = case.needs("parts", f"parts of each sample, as {FORM}")
    subject, classes = case.subject, _classes(case)
    key = ("worth", kind, tuple(classes.tolist()))
    if key not in subject.shared:
        subject.shared[key] = worth_of_parts(case, parts, kind)
    worth = subject.shared[key]
    if subject.batch.modality == "text":
        units = text_units(subject, case.saliency, "word", "whitespace")
        rows, real = units.scores.double().cpu(), units.counted
    else:
        height, width = subject.batch.pixels.shape[-2:]
        rows = at_size(check_map(subject, case.saliency).double(), (int(height), int(width))).flatten(1).cpu()
        real = None
    counted = torch.ones_like(rows, dtype=torch.bool) if real is None else real.cpu()
    scores, members, worths = [], [], []
    for n, part in enumerate(parts):
        inside = _members(part, rows.shape[1])[:, counted[n]]
        visible = inside.any(1)  # a part may be cut off, or too small for the pixels that the model sees
        seen = not len(visible) or bool(visible[worth[n].argmax()])  # no map can point at what has no units
        scores.append(rows[n][counted[n]])
        members.append(inside[visible])
        worths.append(worth[n][visible] if seen else torch.full((int(visible.sum()),), torch.nan).double())
    return PartScores(tuple(case.ids), scores, members, worths)


def _members(part: InputParts | None, units: int) -> Tensor:
    """Units of each part, bool (P, U)."""
    if part is None:
        return torch.zeros(0, units, dtype=torch.bool)
    if part.masks is not None:
        return part.masks.flatten(1).cpu()
    members = torch.zeros(len(part), units, dtype=torch.bool)
    for number, words in enumerate(part.words or ()):
        members[number, [word for word in words if word < units]] = True
    return members


def _classes(case: Case) -> Tensor:
    return case.subject.predicted if case.explained is None else case.explained


def worth_of_parts(case: Case, parts: Sequence[InputParts | None], kind: Worth) -> list[Tensor]:
    """Worth of the parts of each sample to the explained class, (P,), float64; NaN where the sample does not count.

    All changed inputs of the batch are run together.
    """
    answers = case.needs("answers", "a way to run the model on other inputs (answers=)")
    groups = [[] if part is None else _groups(len(part), kind) for part in parts]
    changed = [part.remove(group) for part, rows in zip(parts, groups, strict=True) if part for group in rows]
    classes = _classes(case)[:, None]
    intact = case.subject.read(case.subject.logits, classes)[0][:, 0].double().cpu()
    rounding = rounding_of(case.subject).cpu()
    lengths = torch.tensor([len(rows) for rows in groups], device=classes.device)
    values = torch.zeros(0, dtype=torch.float64)
    if changed:
        values = case.subject.read(answers(changed), classes.repeat_interleave(lengths, 0))[0][:, 0].double().cpu()
    worth = []
    for n, (part, scores) in enumerate(zip(parts, torch.split(values, lengths.tolist()), strict=True)):
        if part is None:
            worth.append(torch.zeros(0, dtype=torch.float64))
            continue
        outcomes = dict(zip(groups[n], scores.tolist(), strict=True))
        outcomes[()] = float(intact[n])
        row = _removal(len(part), outcomes) if kind == "removal" else _shapley(len(part), outcomes)
        counts = float(row.max()) > float(rounding[n]) and _behaves(case, n, part, row)
        worth.append(row if counts else torch.full_like(row, torch.nan))
    return worth


def _groups(count: int, kind: Worth) -> list[tuple[int, ...]]:
    """Numbers of the parts that are taken away together."""
    if kind == "removal":
        return [(number,) for number in range(count)]
    advice = "; take worth='removal'"
    check_that(count <= _MOST, f"at most {_MOST} parts of an input for Shapley values", count, advice)
    return [group for size in range(1, count + 1) for group in combinations(range(count), size)]


def _removal(count: int, outcomes: dict[tuple[int, ...], float]) -> Tensor:
    """`y(x) - y(x without the part)`."""
    return torch.tensor([outcomes[()] - outcomes[number,] for number in range(count)], dtype=torch.float64)


def _shapley(count: int, outcomes: dict[tuple[int, ...], float]) -> Tensor:
    """Shapley value of each part: its mean loss over all orders in which parts can be taken away."""
    values = torch.zeros(count, dtype=torch.float64)
    for group, outcome in outcomes.items():
        for number in set(range(count)).difference(group):
            weight = factorial(len(group)) * factorial(count - len(group) - 1) / factorial(count)
            values[number] += weight * (outcome - outcomes[tuple(sorted((*group, number)))])
    return values


def _behaves(case: Case, n: int, part: InputParts, worth: Tensor) -> bool:
    """Whether the model answers a labelled input rightly, and uses the evidence that is known by construction."""
    label = -1 if case.subject.label is None else int(case.subject.label[n])
    if label < 0:
        return True
    second = -1 if case.other_class is None else int(case.other_class[n])
    explained, predicted = int(_classes(case)[n]), int(case.subject.predicted[n])
    if predicted not in (label, second) or explained not in (label, second):
        return False
    if part.signs is None or explained != label:
        return True
    idle = max((abs(float(value)) for value, sign in zip(worth, part.signs, strict=True) if sign == 0), default=0.0)
    return all(float(value) > idle for value, sign in zip(worth, part.signs, strict=True) if sign == 1)
