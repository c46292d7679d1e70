"""The answer in words: which method to use, how sure that is, and what else was found."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from torch import Tensor

from mhex._printable import printable
from mhex.bench.budget import spoken
from mhex.bench.course import remarks
from mhex.bench.layout import in_columns
from mhex.bench.report import Report
from mhex.bench.shown import Shown
from mhex.bench.tables import FEWEST

_HEADS = ("method", "behind the best", "standing", "above random?", "samples", "a map takes")
_ASIDE = ("report", "table", "options", "values", "curves", "shown", "made")  # not in the JSON as they are
_WORDS = {"unknown": "few samples"}


@dataclass(frozen=True)
class Line:
    """A method in the table of a recommendation.

    Attributes:
        method: As it is called in tables.
        standing: In words: `"best"`, `"indistinguishable"`, `"too few samples"`, `"likely worse"` or `"worse"`, with
            `", not above random"` where that holds; or `"control"`.
        behind: Mean of the best less this one in the unit of the score, on the images that both have.
        low, high: Ends of its 95 % bootstrap interval.
        score: Mean over the images of this method, higher being better.
        parts: Mean of each number that the score is made of, over the images of this method.
        spans: Ends of the 95 % bootstrap intervals of `"score"` and of all parts, by name.
        worse: Whether it is worse than the best: `"yes"`, also after Holm's correction for all methods; `"likely"`, by
            its own test alone; `"no"`; or `"unknown"`, by too few images for any test. None for control maps.
        above_random: Whether it is better than random maps, in the same words. None for control maps.
        images: How many it was judged on.
        seconds: Of one explanation.
    """

    method: str
    standing: str
    behind: float
    low: float
    high: float
    score: float
    parts: Mapping[str, float]
    spans: Mapping[str, tuple[float, float]]
    worse: str | None
    above_random: str | None
    images: int
    seconds: float

    @property
    def control(self) -> bool:
        """Whether it is a control map."""
        return self.worse is None


@dataclass(frozen=True)
class Recommendation:
    """Which method to use on a model.

    Attributes:
        method: Its name; a control map is never recommended.
        options: Of the method, as given; `mhex.explain(model, inputs, method, **options)` makes such maps.
        sure: Share of bootstrap resamples of the images in which no other method was ahead.
        margin: By how much the next one is behind, in the unit of the score, and ends of its 95 % interval; None
            without a next one.
        seconds: Of one explanation, as measured.
        indistinguishable: Methods that nothing speaks against (flips of signs of pairs, p not below 0.05).
        not_better_than_random: Methods of which the same holds beside random maps, by faithfulness alone.
        left_out: Methods that were not raced, and why.
        too_slow: Those of them that the budget has no time for, and a budget, in seconds, that would have it.
        table: All that were raced, the best first, control maps at the end.
        score: What was measured, in a sentence.
        rounds: For each round, how many methods began it and how many images they had at its end.
        enough: A budget, in seconds, by which all would have ten images in the first round; None if they had.
        used: Seconds that all of it took, the page not counted.
        budget: Seconds that it was given.
        report: Rows of everything that was measured.
        values: Score of each image, (n,), by method and control map; NaN where it has none.
        curves: An arrow table of curves, where the score reads some; else None.
        shown: Photos and maps of the first images.
        made: Model, methods, metric and budget, as they stand on the page.
        lost: Samples that could not be read or judged, and why, by their number in the data.
    """

    method: str
    options: Mapping[str, Any]
    sure: float
    margin: tuple[float, float, float] | None
    seconds: float
    indistinguishable: tuple[str, ...]
    not_better_than_random: tuple[str, ...]
    left_out: Mapping[str, str]
    too_slow: Mapping[str, float]
    table: tuple[Line, ...]
    score: str
    rounds: tuple[tuple[int, int], ...]
    enough: float | None
    used: float
    budget: float
    report: Report = field(repr=False)
    values: Mapping[str, Tensor] = field(repr=False)
    curves: Any = field(repr=False)
    shown: Shown | None = field(repr=False)
    made: Mapping[str, Any] = field(repr=False)
    lost: Mapping[int, str] = field(default_factory=dict, repr=False)

    def sentences(self) -> list[str]:
        """The answer."""
        found = [self._first()]
        if self.margin is not None:
            mean, low, high = self.margin
            span = f" (95 % interval {low:.2f} to {high:.2f})" if self.table[1].images >= FEWEST else ""
            found.append(
                f"In {100 * self.sure:.0f} % of bootstrap resamples no other was ahead; {self.table[1].method} is "
                f"next, {mean:.2f} behind{span}."
            )
        found.append(f"One explanation takes {spoken(self.seconds)}.")
        if self.indistinguishable:
            found.append(f"As good, as far as these samples tell: {', '.join(self.indistinguishable)}.")
            equals = [line for line in self.table if line.worse in ("no", "unknown")]
            cheap = min(equals, key=lambda line: line.seconds)
            if 2 * cheap.seconds < self.seconds:
                found.append(f"The quickest of these is {cheap.method}, with {spoken(cheap.seconds)}.")
        elif self._count > 1:
            sure = all(line.worse in (None, "yes") for line in self.table[1:])
            found.append(f"All others are {'' if sure else 'likely '}worse.")
        beaten = [name for name in self.not_better_than_random if not self._weak or name != self.table[0].method]
        if beaten:
            found.append(f"No better than random maps here, as far as these samples tell: {', '.join(beaten)}.")
        if self.enough is not None:
            found.append(
                f"Every method had {_many(self.rounds[0][1])} before the first left, which is few; a budget of about "
                f"{spoken(self.enough)} would give ten."
            )
        found += remarks("", self.lost)
        for reason, names in by_reason(self.left_out).items():
            what = "Too slow for this budget" if names[0] in self.too_slow else "Left out"
            found.append(f"{what}: {', '.join(names)} ({reason}).")
        return found

    def _first(self) -> str:
        named, samples = self.table[0].method, _many(self.table[0].images)
        if self._weak:
            return f"No method is shown to beat random maps on this model and data; {named} is first on {samples}."
        if self._count == 1:
            return f"Use {named}: the only method that was raced, on {samples} of your data."
        return f"Use {named}: the best of {self._count} methods on {samples} of your data."

    @property
    def _weak(self) -> bool:
        return self.table[0].above_random in ("no", "unknown")

    @property
    def _count(self) -> int:
        return sum(not line.control for line in self.table)

    def __str__(self) -> str:
        width = shutil.get_terminal_size().columns
        rows = in_columns([self.heads, *(self.cells(line) for line in self.table)], width)
        notes = f"{self.score} {self.course()} {spoken(self.used)} of {spoken(self.budget)} used."
        return printable("\n".join([*self.sentences(), "", rows, "", notes]))

    def course(self) -> str:
        """How the race went, in a sentence."""
        rounds = ", ".join(f"{methods} methods on {images} samples" for methods, images in self.rounds)
        return f"Rounds: {rounds}."

    @property
    def heads(self) -> list[str]:
        """Of the columns of the table."""
        return [_HEADS[0], *(name.replace("_", " ") for name in self.table[0].parts), *_HEADS[1:]]

    def cells(self, line: Line) -> list[str]:
        """A line of the table."""
        return [
            line.method,
            *(f"{value:.3f}" for value in line.parts.values()),
            "" if line is self.table[0] else behind_text(line),
            line.standing.partition(",")[0],
            _WORDS.get(line.above_random or "", line.above_random or ""),
            str(line.images),
            spoken(line.seconds),
        ]

    def to_html(self) -> str:
        """The whole answer as a page that needs nothing else: words, table, pictures, score, protocol and versions."""
        from mhex.bench.page_recommendation import recommendation_page

        return recommendation_page(self)

    def _repr_html_(self) -> str:
        from mhex.bench.page_recommendation import answer_html, table_html

        return answer_html(self) + table_html(self)

    def save(self, folder: str | PathLike[str]) -> Path:
        """Write the page, `recommendation.html`, the same as `.txt` and `.json`, and all rows, curves and maps.

        `mhex.Report.load` and `mhex report` read the folder as they read those of `mhex.evaluate`. A recommendation
        that is there already is replaced.
        """
        from mhex.bench.saving import save

        return save(self, Path(folder))

    def as_dict(self) -> dict[str, Any]:
        """Everything but the rows and pictures, for JSON."""
        names = [name for name in self.__dataclass_fields__ if name not in _ASIDE]
        table = [{**vars(line), "parts": dict(line.parts), "spans": dict(line.spans)} for line in self.table]
        options = json.loads(json.dumps(dict(self.options), default=str))
        return {**{name: getattr(self, name) for name in names}, "options": options, "table": table}


def behind_text(line: Line) -> str:
    """How far a method is behind; few images have no interval."""
    return f"{line.behind:.2f}" + (f" ± {(line.high - line.low) / 2:.2f}" if line.images >= FEWEST else "")


def _many(images: int) -> str:
    return f"{images} sample{'' if images == 1 else 's'}"


def by_reason(left_out: Mapping[str, str]) -> dict[str, Sequence[str]]:
    """Methods by why they were left out."""
    groups: dict[str, list[str]] = {}
    for name, reason in left_out.items():
        groups.setdefault(reason, []).append(name)
    return dict(groups)
