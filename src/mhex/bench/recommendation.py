"""The answer in words: which method to use, how sure that is, and what else was found."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from mhex.bench.budget import spoken
from mhex.bench.layout import in_columns
from mhex.bench.report import Report

_WIDTH = 110
_HEADS = ("method", "behind the best", "worse?", "above random?", "samples", "a map takes")


@dataclass(frozen=True)
class Line:
    """A method in the table of a recommendation.

    Attributes:
        method: As it is called in tables.
        behind: Mean of the best less this one in the unit of the score, on the images that both have.
        low, high: Ends of its 95 % bootstrap interval.
        parts: Mean of each number of the metric, over the images of this method.
        worse: Whether it is worse than the best: `"yes"`, also after Holm's correction for all methods; `"likely"`, by
            its own test alone; or `"no"`. None for control maps.
        above_random: Whether it is better than random maps, in the same words. None for control maps.
        images: How many it was judged on.
        seconds: Of one explanation.
    """

    method: str
    behind: float
    low: float
    high: float
    parts: Mapping[str, float]
    worse: str | None
    above_random: str | None
    images: int
    seconds: float


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
        indistinguishable: Methods that nothing speaks against (Student's t of pairs, one-sided, p not below 0.05).
        not_better_than_random: Methods of which the same holds beside random maps, by faithfulness alone.
        left_out: Methods that were not raced, and why.
        table: All that were raced, the best first, control maps at the end.
        score: What was measured, in a sentence.
        rounds: For each round, how many methods began it and how many images they had at its end.
        used: Seconds that all of it took.
        budget: Seconds that it was given.
        report: Rows of everything that was measured.
    """

    method: str
    options: Mapping[str, Any]
    sure: float
    margin: tuple[float, float, float] | None
    seconds: float
    indistinguishable: tuple[str, ...]
    not_better_than_random: tuple[str, ...]
    left_out: Mapping[str, str]
    table: tuple[Line, ...]
    score: str
    rounds: tuple[tuple[int, int], ...]
    used: float
    budget: float
    report: Report = field(repr=False)

    def sentences(self) -> list[str]:
        """The answer."""
        images = self.table[0].images
        named = self.table[0].method
        weak = named in self.not_better_than_random
        found = [
            f"No method is shown to beat random maps on this model and data; {named} is first on {_many(images)}."
            if weak
            else f"Use {named}: the best of {_count(self.table)} methods on {_many(images)} of your data."
        ]
        if self.margin is not None:
            following = self.table[1].method
            mean, low, high = self.margin
            found.append(
                f"In {100 * self.sure:.0f} % of bootstrap resamples no other was ahead; {following} is next, "
                f"{mean:.2f} behind (95 % interval {low:.2f} to {high:.2f})."
            )
        found.append(f"One explanation takes {spoken(self.seconds)}.")
        if self.indistinguishable:
            found.append(f"As good, as far as these samples tell: {', '.join(self.indistinguishable)}.")
            cheap = min((line for line in self.table if line.worse == "no"), key=lambda line: line.seconds)
            if 2 * cheap.seconds < self.seconds:
                found.append(f"The quickest of these is {cheap.method}, with {spoken(cheap.seconds)}.")
        else:
            sure = all(line.worse in (None, "yes") for line in self.table[1:])
            found.append(f"All others are {'' if sure else 'likely '}worse.")
        beaten = [name for name in self.not_better_than_random if not weak or name != named]
        if beaten:
            found.append(f"No better than random maps here, as far as these samples tell: {', '.join(beaten)}.")
        for reason, names in _by_reason(self.left_out).items():
            found.append(f"Left out: {', '.join(names)} ({reason}).")
        return found

    def __str__(self) -> str:
        rounds = ", ".join(f"{methods} methods on {images} samples" for methods, images in self.rounds)
        notes = f"{self.score} Rounds: {rounds}. {spoken(self.used)} of {spoken(self.budget)} used."
        return "\n".join([*self.sentences(), "", in_columns([self._heads, *self._cells()], _WIDTH), "", notes])

    @property
    def _heads(self) -> list[str]:
        return [_HEADS[0], *(name.replace("_", " ") for name in self.table[0].parts), *_HEADS[1:]]

    def _cells(self) -> list[list[str]]:
        return [
            [
                line.method,
                *(f"{value:.3f}" for value in line.parts.values()),
                "" if line is self.table[0] else _behind(line),
                "" if line is self.table[0] else line.worse or "",
                line.above_random or "",
                str(line.images),
                spoken(line.seconds),
            ]
            for line in self.table
        ]

    def to_html(self) -> str:
        """Sentences and table as a piece of HTML."""
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self._heads)
        body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in self._cells())
        said = "".join(f"<li>{html.escape(one)}</li>" for one in self.sentences())
        return (
            f"<ul>{said}</ul><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
            f"<p>{html.escape(self.score)}</p>"
        )

    def _repr_html_(self) -> str:
        return self.to_html()

    def save(self, folder: str | PathLike[str]) -> Path:
        """Write `recommendation.txt`, `.json` and `.html`, and all rows as `rows.parquet`, into a folder."""
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        page = f"<!doctype html><meta charset='utf-8'><title>mhex recommend</title>{self.to_html()}\n"
        (place / "recommendation.html").write_text(page, encoding="utf-8")
        (place / "recommendation.txt").write_text(f"{self}\n", encoding="utf-8")
        (place / "recommendation.json").write_text(json.dumps(self.as_dict(), indent=2), encoding="utf-8")
        self.report.to_parquet(place / "rows.parquet")
        return place

    def as_dict(self) -> dict[str, Any]:
        """Everything but the rows, for JSON."""
        names = [name for name in self.__dataclass_fields__ if name not in ("report", "table", "options")]
        table = [{**vars(line), "parts": dict(line.parts)} for line in self.table]
        options = json.loads(json.dumps(dict(self.options), default=str))
        return {**{name: getattr(self, name) for name in names}, "options": options, "table": table}


def _behind(line: Line) -> str:
    # One image has no interval.
    return f"{line.behind:.2f}" + (f" ± {(line.high - line.low) / 2:.2f}" if line.images > 1 else "")


def _count(table: Sequence[Line]) -> int:
    return sum(line.worse is not None for line in table)


def _many(images: int) -> str:
    return f"{images} sample{'' if images == 1 else 's'}"


def _by_reason(left_out: Mapping[str, str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for name, reason in left_out.items():
        groups.setdefault(reason, []).append(name)
    return groups
