"""The answer of `mhex.recommend` in words and numbers, and as a folder."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from scipy import stats
from torch import Tensor

from mhex._files import folder_aside, write_text
from mhex._printable import printable
from mhex._settings import check_that
from mhex.errors import by_reason
from mhex.judge import store
from mhex.judge.controls import CONTROLS, PREFIX
from mhex.judge.report import Report
from mhex.judge.tables import in_columns
from mhex.recommend.race import NO_TIME, spoken
from mhex.recommend.result import LEVEL, NEGLIGIBLE, Span
from mhex.stats.simultaneous import MIN_IMAGES

NAME = "recommendation"
PAGE = f"{NAME}.html"
_JSON = f"{NAME}.json"
_NOT_IN_JSON = ("report", "table", "options", "values", "saved_maps", "call")
_BUSY = 1.5  # a load from which the answer says that the machine had other work


@dataclass(frozen=True)
class RankedMethod:
    """A method in the table of a recommendation.

    `worse` says whether it is worse than the best: `"yes"`, it is shown to be; `"no"`, it is in the confidence set of
    the best; `"undecided"`, it left early, or there are fewer than six images. `above_random` says
    what it is beside random maps: `"above"`; `"negligible"`, shown to have less than a fifth of the best's lead over
    them; or `"undecided"`. Control maps have None in both. The standing is `"best"`, `"indistinguishable"`, `"worse"`,
    `"left early"`, `"too few samples"` (then of all methods), or `"control"`.
    """

    method: str  # its name in tables
    standing: str
    behind: float  # mean of the best less this one in the unit of the score, on the images that both have
    low: float  # end of its 95 % interval, simultaneous for all pairs of methods judged as long; NaN below six images
    high: float
    score: float  # mean over the images of this method, higher being better
    parts: Mapping[str, float]  # mean of each number that the score is made of, over the same images
    spans: Mapping[str, tuple[float, float]]  # ends of 95 % intervals of "score" and of all parts, for all methods
    worse: str | None
    above_random: str | None
    images: int  # that it was judged on
    seconds: float  # of one explanation

    @property
    def control(self) -> bool:
        """Whether it is a control map."""
        return self.worse is None

    def number(self, name: str) -> str:
        """The score or one of its parts, by name; a dash where there is none."""
        value = self.score if name == "score" else self.parts[name]
        return "—" if math.isnan(value) else self.with_interval(value, *self.spans[name])

    def with_interval(self, value: float, low: float, high: float) -> str:
        """A number with half the width of its interval, which few images do not have."""
        return f"{value:.2f}" + (f" ± {(high - low) / 2:.2f}" if math.isfinite(high - low) else "")


@dataclass(frozen=True)
class Recommendation:
    """Which method to use on a model: `mhex.explain(model, inputs, method, **options)` makes the recommended maps."""

    method: str  # its name; a control map is never recommended
    options: Mapping[str, Any]  # of the method
    # Share of bootstrap resamples of the images in which no other method was ahead; None for fewer than six images
    sure: float | None
    # By how much the next one is behind, in the unit of the score, and ends of its simultaneous 95 % interval; None
    # without a next one, and where either has fewer than six images
    margin: Span | None
    seconds: float  # of one explanation, as measured
    indistinguishable: tuple[str, ...]  # the other methods in the confidence set of the best
    # Methods shown to have less than a fifth of the best's lead over random maps, by the score; where faithfulness is a
    # part of it, as of "balanced", by that alone
    not_better_than_random: tuple[str, ...]
    left_out: Mapping[str, str]  # methods that were not raced, and why
    too_slow: Mapping[str, float]  # those that the budget has no time for, and a budget, in seconds, that would have it
    table: tuple[RankedMethod, ...]  # all that were raced, the best first, control maps at the end
    score: str  # what was measured, in a sentence
    rounds: tuple[tuple[int, int], ...]  # for each, how many methods began it and how many images they had at its end
    enough: float | None  # a budget, in seconds, by which all would have ten images in round one; None if they had
    used: float  # seconds that all of it took, the page not counted
    budget: float  # its seconds
    report: Report = field(repr=False)  # rows of everything that was measured
    values: Mapping[str, Tensor] = field(repr=False)  # score of each image, (n,), by method and control; or NaN
    saved_maps: store.SavedMaps | None = field(repr=False)  # photos and maps of the first images
    call: Mapping[str, Any] = field(repr=False)  # model, methods, metric and budget, as they stand on the page
    lost: Mapping[int, str] = field(default_factory=dict, repr=False)  # samples not judged, and why, by number
    exhausted: bool = False  # whether the race ended because all samples were used
    accuracy: tuple[int, int, int] | None = None  # samples with the right class, with a label; number of classes
    undecided: tuple[str, ...] = ()  # methods neither negligible nor shown to be above random maps
    # By centred or edge map: methods that are not shown to be above it, compared alike; empty for few images
    not_better_than_control: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    left_early: tuple[str, ...] = ()  # left for want of time, or were worse than a method left out later: undecided
    load: float = 1.0  # times as long as on a machine without other work it took, as far as that is known

    @property
    def few(self) -> bool:
        """Whether the best has too few images for any test."""
        return self.table[0].images < MIN_IMAGES

    def sentences(self) -> list[str]:
        """The answer as sentences."""
        best, count = self.table[0], sum(not line.control for line in self.table)
        weak, samples = best.above_random != "above", _many(best.images)
        sentences = self._chance()
        if self.few:
            sentences.append(
                f"{best.method} is first on {samples}, but that is too few to tell methods apart: it takes "
                f"{MIN_IMAGES}."
                if count > 1
                else f"{best.method} is the only method that was raced, on {samples}, which is too few to tell it "
                f"from control maps: it takes {MIN_IMAGES}."
            )
        elif weak:
            sentences.append(
                f"No method is shown to beat random maps on this model and data; {best.method} is first on {samples}."
                if not any(line.above_random == "above" for line in self.table)
                else f"{best.method} is first on {samples}, but it is not shown to beat random maps."
            )
        elif count == 1:
            sentences.append(f"Use {best.method}: the only method that was raced, on {samples} of your data.")
        else:
            sentences.append(f"Use {best.method}: the best of {count} methods on {samples} of your data.")
        if not self.few:
            sentences += self._beside_controls(best)
        if self.margin is not None and self.sure is not None:
            mean, low, high = self.margin
            span = f" (95 % interval {low:.2f} to {high:.2f})" if math.isfinite(high - low) else ""
            sentences.append(
                f"In {100 * self.sure:.0f} % of bootstrap resamples no other was ahead; {self.table[1].method} is "
                f"next, {mean:.2f} behind{span}."
            )
        sentences.append(f"One explanation takes {spoken(self.seconds)}.")
        if self.indistinguishable:
            sentences.append(f"As good, as far as these samples tell: {', '.join(self.indistinguishable)}.")
            cheap = min((line for line in self.table if line.worse == "no"), key=lambda line: line.seconds)
            if 2 * cheap.seconds < self.seconds:
                sentences.append(f"The quickest of these is {cheap.method}, with {spoken(cheap.seconds)}.")
        if self.left_early:
            sentences.append(f"Left early, so undecided: {', '.join(self.left_early)}.")
        worse = [line.method for line in self.table if line.worse == "yes"]
        if worse and len(worse) == count - 1:
            sentences.append("All others are worse.")
        elif worse:
            sentences.append(f"Worse: {', '.join(worse)}.")
        if self.not_better_than_random:
            sentences.append(
                f"Hardly or not better than random maps, with less than {NEGLIGIBLE:.0%} of the lead of "
                f"{best.method}: {', '.join(self.not_better_than_random)}."
            )
        doubtful = [name for name in self.undecided if name != best.method]
        if doubtful and not weak:
            sentences.append(f"Not shown to be above random maps, nor below: {', '.join(doubtful)}.")
        sentences += self._circumstances()
        return sentences

    def _chance(self) -> list[str]:
        """How often the model is right; at chance there is nothing to explain."""
        if self.accuracy is None:
            return []
        hits, count, classes = self.accuracy
        sentence = f"The model is right on {hits} of {_many(count)}"
        if count < MIN_IMAGES or stats.binomtest(hits, count, 1 / classes, alternative="greater").pvalue <= LEVEL:
            return [f"{sentence}."]
        return [f"{sentence}, which is not shown to be above chance (1 of {classes}): there may be nothing to explain."]

    def _beside_controls(self, best: RankedMethod) -> list[str]:
        """Sentences on centred and edge maps: whether they are as good as methods that are above random maps."""
        sentences = []
        strong = [line.method for line in self.table if line.above_random == "above" and line.worse != "yes"]
        for control, names in self.not_better_than_control.items():
            blind = f"{CONTROLS[control.removeprefix(PREFIX)].title} is as good as"
            equal = [name for name in names if name in strong]
            if best.method in equal:
                sentences.append(
                    f"{blind} {best.method} here, as far as these samples tell: that map is made without the model."
                )
                equal.remove(best.method)
            if equal:
                sentences.append(f"{blind} {', '.join(equal)}, as far as these samples tell.")
        return sentences

    def _circumstances(self) -> list[str]:
        """Sentences on the budget, the samples and what was left out."""
        sentences = []
        if self.enough is not None:
            sentences.append(
                f"Every method had {_many(self.rounds[0][1])} before the first left, which is few; a budget of about "
                f"{spoken(self.enough)} would give ten."
            )
        if self.load > _BUSY:
            sentences.append(
                f"The machine had other work: all took about {self.load:.1f} times as long as alone, so that "
                "fewer samples were judged."
            )
        if self.exhausted:
            sentences.append(
                f"All samples are used, after {spoken(self.used)} of {spoken(self.budget)}: more samples would make "
                "the answer surer, more time would not."
            )
        sentences += store.remarks("", self.lost)
        for reason, names in by_reason(self.left_out).items():
            start = "Too slow for this budget" if names[0] in self.too_slow else "Left out"
            start = "Not tried" if reason.startswith(NO_TIME) else start
            sentences.append(f"{start}: {', '.join(names)} ({reason}).")
        return sentences

    def __str__(self) -> str:
        parts = (name.replace("_", " ") for name in self.table[0].parts)
        heads = ["method", *parts, "behind the best", "standing", "above random?", "samples", "a map takes"]
        rows = in_columns([heads, *map(self.cells, self.table)], shutil.get_terminal_size().columns)
        notes = f"{self.score} {self.course()} {spoken(self.used)} of {spoken(self.budget)} used."
        return printable("\n".join([*self.sentences(), "", rows, "", notes]))

    def course(self) -> str:
        """How the race went, in a sentence."""
        rounds = ", ".join(f"{methods} methods on {images} samples" for methods, images in self.rounds)
        return f"Rounds: {rounds}."

    def cells(self, line: RankedMethod) -> list[str]:
        """A line of the table."""
        return [
            line.method,
            *(f"{value:.3f}" for value in line.parts.values()),
            "" if line is self.table[0] else line.with_interval(line.behind, line.low, line.high),
            line.standing,
            line.above_random or "",
            str(line.images),
            spoken(line.seconds),
        ]

    def to_html(self) -> str:
        """The whole answer as a page that needs nothing else: words, table, pictures, score, protocol and versions."""
        from mhex.recommend.page import recommendation_page

        return recommendation_page(self)

    def _repr_html_(self) -> str:
        from mhex.recommend.page import first_pieces

        return "".join(first_pieces(self).values())

    def save(self, folder: str | PathLike[str]) -> Path:
        """Write the page, `recommendation.html`, the same as `.txt` and `.json`, and all rows, curves and maps.

        `mhex.Report.load` and `mhex report` read the folder as they read those of `mhex.evaluate`. A recommendation
        that is there already is replaced.
        """
        folder = Path(folder)
        check_folder(folder)
        kinds, maps = (store.ROWS, store.CURVES, store.PHOTOS, store.MAPS), self.saved_maps
        with folder_aside(folder / ".partial") as aside:
            write_text(json.dumps(self.as_dict(), indent=2), aside / _JSON)
            write_text(f"{self}\n", aside / f"{NAME}.txt")
            self.report.save(aside, self.call)
            for parts in () if maps is None else (maps.photos, maps.maps):
                if (table := parts.table()).num_rows:
                    store.write(table, aside / f"{parts.kind.name}-000000.parquet")
            write_text(self.to_html(), aside / PAGE)
            for path in [file for kind in kinds for _, file in store.numbered(folder, kind)]:
                path.unlink()
            # The JSON file, which says that the folder holds a recommendation, comes before the rows.
            for file in sorted(aside.iterdir(), key=lambda file: file.name != _JSON):
                file.replace(folder / file.name)
        return folder

    def as_dict(self) -> dict[str, Any]:
        """Everything but the rows and pictures, for JSON."""
        names = [name for name in self.__dataclass_fields__ if name not in _NOT_IN_JSON]
        table = [_strict({**vars(line), "parts": dict(line.parts), "spans": dict(line.spans)}) for line in self.table]
        options = json.loads(json.dumps(dict(self.options), default=str))
        return {**{name: _strict(getattr(self, name)) for name in names}, "options": options, "table": table}


def _strict(value: Any) -> Any:
    """A value with None for numbers that are NaN or infinite, which JSON does not have."""
    if isinstance(value, Mapping):
        return {name: _strict(entry) for name, entry in value.items()}
    if isinstance(value, (tuple, list)):
        return [_strict(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _many(images: int) -> str:
    return f"{images} sample{'' if images == 1 else 's'}"


def is_recommendation(folder: Path) -> bool:
    """Whether a folder holds a recommendation."""
    return (folder / _JSON).is_file()


def check_folder(folder: Path) -> None:
    """Refuse a folder that holds the rows of something else."""
    other = folder.is_dir() and bool(store.numbered(folder)) and not is_recommendation(folder)
    actual = f"{str(folder)!r}, which holds an evaluation"
    check_that(not other, "a folder for a recommendation", actual, "; choose another one")
