"""A recommendation as a folder: a page to be looked at, and rows that evaluations are read from too."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mhex._files import folder_aside, write_text
from mhex._printable import printable
from mhex.errors import ArgumentError
from mhex.judge import report as about
from mhex.judge import store
from mhex.judge.controls import RANDOM
from mhex.judge.report import Report
from mhex.judge.rows import explain_seconds
from mhex.judge.saved_maps import MAPS, PHOTOS, Shown
from mhex.judge.store import remarks
from mhex.judge.tables import FEWEST, in_columns
from mhex.recommend.race import Race, no_time, spoken
from mhex.recommend.score import Difference, Outcome, above, outcome_of
from mhex.stats.intervals import bootstrap

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
        from mhex.recommend.page import recommendation_page

        return recommendation_page(self)

    def _repr_html_(self) -> str:
        from mhex.recommend.page import answer_html, table_html

        return answer_html(self) + table_html(self)

    def save(self, folder: str | PathLike[str]) -> Path:
        """Write the page, `recommendation.html`, the same as `.txt` and `.json`, and all rows, curves and maps.

        `mhex.Report.load` and `mhex report` read the folder as they read those of `mhex.evaluate`. A recommendation
        that is there already is replaced.
        """
        pass

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


_STANDING = {"yes": "worse", "likely": "likely worse", "no": "indistinguishable", "unknown": "too few samples"}


def answer_of(race: Race, made: Mapping[str, Any], seed: int = 0) -> Recommendation:
    """The answer of a race.

    Args:
        race: That is over.
        made: What is known of the call, for the page.
        seed: Of flips and resamples.
    """
    if not race.last:
        if race.too_slow:
            raise ArgumentError(no_time(race.watch.budget, race.too_slow))
        name, why = next(iter(race.left_out.items()))
        more = f", and {len(race.left_out) - 1} others likewise" if len(race.left_out) > 1 else ""
        raise ArgumentError(f"Expected at least one method that can be raced, but {name} cannot ({why}){more}.")
    report, raced = race.report, race.raced
    names = [one.label for one in raced if not one.control]
    controls = [one.label for one in raced if one.control]
    values = {name: one for name, one in race.score.values(report).items() if name in (*names, *controls)}
    found = outcome_of({name: values[name] for name in names}, race.last, seed)
    higher = above(race.score.faithful(report), RANDOM, names, seed)
    beside = outcome_of({name: values[name] for name in (found.best, *controls)}, [found.best], seed)
    seconds, parts = explain_seconds(report.rows), race.score.parts(report)

    def line(name: str) -> Line:
        own = beside if name in controls else found
        middle, spans = _means({"score": values[name], **parts[name]}, seed)
        return Line(
            name,
            "control" if name in controls else _standing(name, found, higher[name]),
            *own.behind[name],
            middle.pop("score"),
            middle,
            spans,
            None if name in controls else "no" if name == found.best else found.worse[name].said,
            None if name in controls else higher[name].said,
            own.images[name],
            seconds[name],
        )

    winner = next(one for one in raced if one.label == found.best)
    return Recommendation(
        method=winner.name,
        options=dict(winner.options),
        sure=found.sure,
        margin=found.behind[found.order[1]] if len(found.order) > 1 else None,
        seconds=seconds[found.best],
        indistinguishable=found.equals,
        not_better_than_random=tuple(name for name in found.order if higher[name].said == "no"),
        left_out=dict(race.left_out),
        too_slow=dict(race.too_slow),
        table=tuple(line(name) for name in (*found.order, *beside.order[1:])),
        score=race.score.words,
        rounds=tuple(race.rounds),
        enough=race.enough,
        used=race.watch.used,
        budget=race.watch.budget,
        report=report,
        values=values,
        curves=race.curves,
        shown=race.run.shown,
        made=made,
        lost=race.lost,
    )


def _standing(name: str, found: Outcome, higher: Difference) -> str:
    place = "best" if name == found.best else _STANDING[found.worse[name].said]
    return f"{place}, not above random" if higher.said == "no" else place


def _means(numbers: Mapping[str, Tensor], seed: int) -> tuple[dict[str, float], dict[str, tuple[float, float]]]:
    """Mean of each number (n,) over the images that have all, and ends of its interval."""
    table = torch.stack([values.double().cpu() for values in numbers.values()], 1)
    rows = table[table.isfinite().all(1)]
    if not len(rows):
        return dict.fromkeys(numbers, math.nan), dict.fromkeys(numbers, (math.nan, math.nan))
    ends = bootstrap(rows, lambda drawn: drawn.mean(-2), seed=seed)
    spans = zip(ends.low.tolist(), ends.high.tolist(), strict=True)
    return dict(zip(numbers, rows.mean(0).tolist(), strict=True)), dict(zip(numbers, spans, strict=True))


NAME = "recommendation"
PAGE = f"{NAME}.html"
_KINDS = (store.ROWS, store.CURVES, PHOTOS, MAPS)
_JSON = f"{NAME}.json"


def is_recommendation(folder: Path) -> bool:
    """Whether a folder holds one."""
    return (folder / _JSON).is_file()


def check_folder(folder: Path) -> None:
    """Refuse a folder that holds the rows of something else."""
    if folder.is_dir() and store.numbered(folder) and not is_recommendation(folder):
        raise ArgumentError(
            f"Expected a folder for a recommendation, but {str(folder)!r} holds an evaluation; choose another one."
        )


def save(found: Recommendation, folder: Path) -> Path:
    """Write a recommendation; one that is there already is replaced.

    Args:
        found: The recommendation.
        folder: Made if it is not there.
    """
    check_folder(folder)
    with folder_aside(folder / ".partial") as aside:
        _write(found, aside)
        for path in [file for kind in _KINDS for _, file in store.numbered(folder, kind)]:
            path.unlink()
        # The JSON file, which says that the folder holds a recommendation, comes before the rows.
        for file in sorted(aside.iterdir(), key=lambda file: file.name != _JSON):
            file.replace(folder / file.name)
    return folder


def _write(answer: Recommendation, folder: Path) -> None:
    write_text(json.dumps(answer.as_dict(), indent=2), folder / _JSON)
    write_text(f"{answer}\n", folder / f"{NAME}.txt")
    report, shown = answer.report, answer.shown
    tables = [(store.ROWS, report.rows), (store.CURVES, answer.curves)]
    if shown is not None:
        tables += [(PHOTOS, shown.photos.table()), (MAPS, shown.maps.table())]
    for kind, table in tables:
        if table is not None and table.num_rows:
            store.write(table, folder / f"{kind.name}-000000.parquet")
    write_text(report.rows.column("run")[0].as_py(), folder / "run.json")
    about.note(folder, answer.made, done=max(line.images for line in answer.table), lost=answer.lost)
    write_text(answer.to_html(), folder / PAGE)
