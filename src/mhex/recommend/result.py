"""What a race shows: the best method, its equals, those that are worse, and those above control maps."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mhex.stats.intervals import resampled
from mhex.stats.simultaneous import MIN_IMAGES, best_set, means_with_intervals, shown_above_zero

LEVEL = 0.05  # of the error of all answers of one kind together
NEGLIGIBLE = 0.2  # of the lead of the best over random maps: a smaller lead explains next to nothing
Span = tuple[float, float, float]  # a mean, and the ends of its interval; NaN where there is none
_RESAMPLES = 4000


@dataclass(frozen=True)
class RaceResult:
    """The method that won, and how sure that is."""

    order: tuple[str, ...]  # methods by how far they are behind the best on the images that both have; the best first
    # Mean of the best less each method, with ends of the simultaneous 95 % interval, by name; those of the best are 0
    behind: Mapping[str, Span]
    # By name, whether a method is worse than the best: "yes", shown; "no", it is in the confidence set of the best;
    # "undecided", it left early, or there are too few images
    worse: Mapping[str, str]
    sure: float | None  # share of resamples of the images in which no method was ahead of the best; None if too few
    images: Mapping[str, int]  # number of images of each

    @property
    def best(self) -> str:
        return self.order[0]

    @property
    def equals(self) -> tuple[str, ...]:
        """Methods in the confidence set beside the best."""
        return tuple(name for name in self.order[1:] if self.worse[name] == "no")


def race_result(
    values: Mapping[str, Tensor], last: Sequence[str], worse: Collection[str] = (), level: float = LEVEL, seed: int = 0
) -> RaceResult:
    """The result of a race.

    Of the methods of the last round, the one with the best mean has won.

    Args:
        values: Scores of each image, (n,), by method; NaN where it has none.
        last: Methods of the last round. Others are undecided, unless they were shown to be worse.
        worse: Methods that were shown to be worse in earlier rounds.
        level: Of the error of the confidence set, which earlier rounds have not spent.
        seed: Of flips and resamples.
    """
    common = torch.stack([values[name].isfinite() for name in last]).all(0)
    means = {name: float(values[name][common].mean()) if common.any() else -math.inf for name in last}
    best = max(last, key=means.__getitem__)
    counts = {name: int(scores.isfinite().sum()) for name, scores in values.items()}
    members = dict(
        zip(last, best_set(torch.stack([values[name] for name in last], 1), level, seed).tolist(), strict=True)
    )
    answers = dict.fromkeys(values, "undecided") | dict.fromkeys(worse, "yes")
    for name in last:
        if counts[name] >= MIN_IMAGES:
            answers[name] = "no" if members[name] or name == best else "yes"
    behind = behind_best(values, best, seed)
    order = sorted((name for name in values if name != best), key=lambda name: behind[name][0])
    return RaceResult((best, *order), behind, answers, _sure(values, best, seed), counts)


def _sure(values: Mapping[str, Tensor], best: str, seed: int) -> float | None:
    """Share of resamples in which no method was ahead of the best; None for too few images."""
    if int(values[best].isfinite().sum()) < MIN_IMAGES:
        return None
    differences = [values[best] - scores for name, scores in values.items() if name != best]
    if not differences:
        return 1.0
    table = torch.stack(differences, 1)
    draws = resampled(table[table.isfinite().any(1)], lambda rows: rows.nanmean(-2), _RESAMPLES, seed)
    # Where a draw has no image of a method, it says nothing of that method.
    return float((draws.nan_to_num(math.inf) >= 0).all(1).double().mean())


def behind_best(values: Mapping[str, Tensor], best: str, seed: int = 0) -> dict[str, Span]:
    """How far methods are behind the best: means over the images of both, with simultaneous 95 % intervals, by name.

    An interval covers all pairs of the methods that were judged as long as this one, so that it also covers when the
    best was picked by these very images.
    """
    spans: dict[str, Span] = {best: (0.0, 0.0, 0.0)}
    for names, rows in _families(values):
        added = [name for name in names if name not in spans]
        family = list(dict.fromkeys([best, *names]))
        pairs = torch.triu_indices(len(family), len(family), 1)
        table = torch.stack([values[name][rows] for name in family], 1)
        means, (low, high) = means_with_intervals(table[:, pairs[0]] - table[:, pairs[1]], seed=seed)
        for name in added:  # the best is the first of the family, and so are its pairs
            place = family.index(name) - 1
            spans[name] = (float(means[place]), float(low[place]), float(high[place]))
    return spans


def means_with_spans(values: Mapping[str, Tensor], seed: int = 0) -> dict[str, Span]:
    """Means of methods with simultaneous 95 % intervals, by name, of values of each image, (n,)."""
    spans: dict[str, Span] = {}
    for names, rows in _families(values):
        means, (low, high) = means_with_intervals(torch.stack([values[name][rows] for name in names], 1), seed=seed)
        family = zip(means.tolist(), low.tolist(), high.tolist(), strict=True)
        spans = dict(zip(names, family, strict=True)) | spans
    return spans


def _families(values: Mapping[str, Tensor]) -> list[tuple[list[str], slice]]:
    """Methods that were judged at least as long as some method, and the images until then, the longest first."""
    ends = {
        name: int(scores.isfinite().nonzero().max()) + 1 if scores.isfinite().any() else 0
        for name, scores in values.items()
    }
    return [
        ([name for name in values if ends[name] >= end], slice(0, end))
        for end in sorted(set(ends.values()), reverse=True)
    ]


def shown_above(
    values: Mapping[str, Tensor], floor: str, methods: Sequence[str], level: float = LEVEL, seed: int = 0
) -> dict[str, bool]:
    """Whether methods are shown to be above a control map, by name; values are (n,), higher being better."""
    if not methods:
        return {}
    table = torch.stack([values[name] - values[floor] for name in methods], 1)
    return dict(zip(methods, shown_above_zero(table, level, seed).tolist(), strict=True))


def beside_random(
    values: Mapping[str, Tensor], floor: str, methods: Sequence[str], best: str, level: float = LEVEL, seed: int = 0
) -> dict[str, str]:
    """What methods are beside random maps, by name: `"above"`, `"negligible"` or `"undecided"`.

    Negligible methods are shown to have less than a fifth of the best's lead over random maps, whether they are above
    them or not. The test is simultaneous for all pairs of a method and a possible best, because the best was picked by
    the same images. Without a lead that is shown, nothing is negligible.

    Args:
        values: Values of each image, (n,), by method and control; higher is better.
        floor: The random map.
        methods: Methods, with the best.
        best: The best method.
        level: Of the error of each of the two answers.
        seed: Of flips.
    """
    above = shown_above(values, floor, methods, level, seed)
    answers = {name: "above" if is_above else "undecided" for name, is_above in above.items()}
    if not above[best]:
        return answers
    pairs = [(name, rival) for name in methods for rival in methods if name != rival]
    leads = {name: values[name] - values[floor] for name in methods}
    if pairs:
        table = torch.stack([NEGLIGIBLE * leads[rival] - leads[name] for name, rival in pairs], 1)
        tests = shown_above_zero(table, level, seed).tolist()
        answers |= {
            name: "negligible" for (name, rival), small in zip(pairs, tests, strict=True) if small and rival == best
        }
    return answers
