"""A full benchmark, and what it says of an answer of `mhex.recommend`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mhex
from mhex.errors import ArgumentError
from mhex.judge import report as about
from mhex.judge import store
from mhex.judge.controls import RANDOM, is_control
from mhex.recommend.result import RaceResult, beside_random, race_result
from mhex.recommend.score import DEFAULT, Score, score_of


@dataclass(frozen=True)
class Full:
    """A full benchmark.

    Attributes:
        outcome: Methods beside the best of those that have all images.
        higher: What each is beside random maps, by faithfulness.
        score: Its weights and units.
        images: How many the best has.
        calls: That made the rows, with their commands and versions.
    """

    outcome: RaceResult
    higher: Mapping[str, str]
    score: Score
    images: int
    calls: Sequence[Mapping[str, Any]]

    @classmethod
    def load(cls, folder: Path) -> Full:
        """From the rows that `mhex.evaluate` wrote with the metric `removal`."""
        if not folder.is_dir() or not store.numbered(folder):
            raise ArgumentError(f"Expected a full benchmark in {str(folder)!r}, but there is none; make it first.")
        report = mhex.Report.load(folder)
        return cls.of(report, about.read_calls(folder))

    @classmethod
    def of(cls, report: mhex.Report, calls: Sequence[Mapping[str, Any]] = ()) -> Full:
        """From a report, whose seed is 0."""
        score = score_of(DEFAULT, "text" if any(":text" in name for name in report.metrics) else "image", 0)
        rows = report.values(score.metric.label)[1]
        counts = {name: int(numbers.isfinite().all(1).sum()) for name, numbers in rows.items() if not is_control(name)}
        whole = [name for name, count in counts.items() if count == max(counts.values())]
        score = score.with_units(report, whole)
        values = score.values(report)
        outcome = race_result({name: values[name] for name in counts}, whole)
        higher = beside_random(score.faithful(report), RANDOM, list(counts), outcome.best)
        return cls(outcome, higher, score, max(counts.values()), calls)

    @property
    def good(self) -> tuple[str, ...]:
        """The best, and all that are not rated significantly worse."""
        worse = self.outcome.worse
        return tuple(name for name in self.outcome.order if worse[name] != "yes")

    @property
    def weak(self) -> frozenset[str]:
        """Methods that are negligible beside random maps, or not shown to be above them."""
        return frozenset(name for name, standing in self.higher.items() if standing != "above")


@dataclass(frozen=True)
class Judgement:
    """An answer beside the full benchmark.

    Attributes:
        pick: The recommended method.
        right: Whether the full benchmark does not rate it significantly worse than its best.
        hits: Methods that both take for no better than random maps.
        misses: Those that the full benchmark alone does, among those that the race could tell.
        false: Those that the race alone does.
        untold: Weak methods that had too few images in the race, or were not in it.
        words: All of it.
    """

    pick: str
    right: bool
    hits: tuple[str, ...]
    misses: tuple[str, ...]
    false: tuple[str, ...]
    untold: tuple[str, ...]
    words: str


def judged(full: Full, answer: Mapping[str, Any]) -> Judgement:
    """Judge an answer.

    Args:
        full: The benchmark.
        answer: `Recommendation.as_dict()`.
    """
    pick = answer["table"][0]["method"]
    if pick not in full.higher:
        raise ArgumentError(f"Expected {pick!r} among the methods of the full benchmark, but it is not there.")
    standings = {line["method"]: line["above_random"] for line in answer["table"] if line["above_random"] is not None}
    flagged = {name for name in answer["not_better_than_random"] if name in full.higher}
    known = {name for name, standing in standings.items() if standing != "undecided"}
    hits, false = flagged & full.weak, flagged - full.weak
    misses, untold = (full.weak & known) - flagged, full.weak - known
    right = pick in full.good
    mean, low, high = full.outcome.behind[pick]
    lists = {"flags right": hits, "missed": misses, "false flags": false, "undecided": untold}
    words = (
        f"{pick}, {'not rated worse' if right else 'rated worse'} ({mean:.3f} behind, {low:.3f} to {high:.3f}); sure "
        f"{percent(answer['sure'])}; {answer['used']:.0f} s of {answer['budget']:.0f}; rounds {answer['rounds']}; "
    ) + "; ".join(f"{what}: {', '.join(sorted(names)) or 'none'}" for what, names in lists.items())
    return Judgement(pick, right, _ordered(hits), _ordered(misses), _ordered(false), _ordered(untold), words)


def percent(share: float | None) -> str:
    """A share in percent; a dash where there is none."""
    return "—" if share is None else f"{100 * share:.0f} %"


def _ordered(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(names))
