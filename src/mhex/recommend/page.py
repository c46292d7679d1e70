"""The page of a recommendation: the answer, the table, pictures, and how it was made, handed to `mhex.viz`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from mhex.judge import report as about
from mhex.judge.controls import RANDOM
from mhex.judge.page import BOXES, cost_html, curves_html, facts_html, map_cards
from mhex.judge.report import Evaluation, Report
from mhex.judge.tables import FEWEST
from mhex.recommend.race import spoken
from mhex.viz.charts import box_figure, styles_of
from mhex.viz.pages import Section, charts_html, page, paragraphs, part, sample_html

_BEST, _WORST = 3, 1  # methods whose maps are shown, from both ends of the table
_TABLE = (
    f"± is half of the 95 % bootstrap interval over samples, from {FEWEST} of them on. Behind the best: on the samples "
    "that both have, in units of the score; means of methods with fewer samples are of these samples. Worse, and above "
    "random (by faithfulness where it is a part): flips of signs of paired differences, p below 0.05 after Holm's "
    "correction for all methods; likely: without it; indistinguishable: neither."
)
_PICTURES = (
    "The best methods, the last of the table, and a random map. Each map is scaled on its own. Controls have "
    "dashed frames."
)
_BEHIND = f"The best less each method, one value per sample; above 0 the best is ahead. {BOXES}"
_COST = "Median over samples of the time that a map took on this machine. The axis counts in powers of ten."
_RACE = (
    "All methods are judged on the same samples, and after each round the better half goes on. Random, centred and "
    "edge maps take part, and are never recommended."
)


class Advice(Protocol):
    """What the page reads of a `mhex.Recommendation`, whose doc-string describes it."""

    @property
    def method(self) -> str: ...
    @property
    def options(self) -> Mapping[str, Any]: ...
    @property
    def left_out(self) -> Mapping[str, str]: ...
    @property
    def too_slow(self) -> Mapping[str, float]: ...
    @property
    def table(self) -> Sequence[Any]: ...
    @property
    def score(self) -> str: ...
    @property
    def used(self) -> float: ...
    @property
    def budget(self) -> float: ...
    @property
    def report(self) -> Report: ...
    @property
    def values(self) -> Mapping[str, Tensor]: ...
    @property
    def saved_maps(self) -> Any: ...
    @property
    def call(self) -> Mapping[str, Any]: ...
    def sentences(self) -> list[str]: ...
    def course(self) -> str: ...
    def cells(self, line: Any) -> list[str]: ...


def recommendation_page(advice: Advice) -> str:
    """The whole page of a recommendation, in HTML."""
    title = f"Which method explains {advice.call['model']} best?"
    return page(title, advice.sentences()[0], list(_sections(advice)))


def _sections(advice: Advice) -> Iterator[Section]:
    entry = _evaluation(advice)
    yield Section("Answer", answer_html(advice))
    yield Section("Methods", table_html(advice), _TABLE)
    if html := _pictures(advice, entry):
        yield Section("Maps", html, _PICTURES)
    if html := _behind(advice):
        yield Section("Behind the best", html, _BEHIND)
    if html := curves_html(entry):
        yield Section("Curves", html)
    yield Section("Cost per explanation", cost_html(entry), _COST)
    if advice.left_out:
        yield Section("Not raced", _left_out(advice))
    used = f"{spoken(advice.used)} of {spoken(advice.budget)} were used, this page not counted."
    yield Section("Score and race", paragraphs(f"{advice.score}\n\n{_RACE} {advice.course()} {used}"))
    yield Section("How it was made", facts_html(entry))


def answer_html(advice: Advice) -> str:
    """The answer as a list, and how to use it, in HTML; methods that were not raced have a place of their own."""
    slow = [name for name in advice.left_out if name in advice.too_slow]
    omitted = ("Left out:", "Too slow for this budget:")
    sentences = [sentence for sentence in advice.sentences() if not sentence.startswith(omitted)]
    if slow:
        sentences.append(f"Too slow for a budget of {spoken(advice.budget)}: {', '.join(slow)}.")
    options = "".join(f", {name}={value!r}" for name, value in advice.options.items())
    call = f"mhex.explain(model, inputs, {json.dumps(advice.method)}{options})"
    return part("answer", sentences=sentences, call=call)


def table_html(advice: Advice) -> str:
    """The table of methods, which scrolls sideways where it must, in HTML."""
    parts = list(advice.table[0].parts)
    head = ["method", "standing", "above random?", "score", *parts, "behind the best", "samples", "a map takes"]
    rows = []
    for line in advice.table:
        _, *_, behind, standing, above, samples, seconds = advice.cells(line)
        numbers = [_number(line, "score", line.score), *(_number(line, name, line.parts[name]) for name in parts)]
        cells = [line.method, standing, above, *numbers, behind, samples, seconds]
        rows.append((cells, line is advice.table[0], line.control))
    return part("standings", head=[name.replace("_", " ") for name in head], rows=rows)


def _number(line: Any, name: str, value: float) -> str:
    if math.isnan(value):
        return "—"
    low, high = line.spans[name]
    return f"{value:.2f}" + (f" ± {(high - low) / 2:.2f}" if line.images >= FEWEST else "")


def _evaluation(advice: Advice) -> Evaluation:
    """The rows as pages of evaluations have them."""
    call = {**advice.call, "command": about.command(), "versions": about.versions()}
    facts = json.loads(advice.report.rows.column("run")[0].as_py())
    raced = advice.report.only([line.method for line in advice.table])
    maps = {} if advice.saved_maps is None else advice.saved_maps.explanations()
    return Evaluation("recommendation", raced, facts, [call], maps)


def _pictures(advice: Advice, entry: Evaluation) -> str:
    """Maps of the best methods, of the last one, and of random maps."""
    methods = [line for line in advice.table if not line.control]
    random = [line for line in advice.table if line.method == RANDOM]
    ends = [*methods[:_BEST], *methods[_BEST:][-_WORST:], *random]
    standings = {line.method: line.standing for line in ends if not line.control}
    samples = []
    for image, maps in entry.drawn.items():
        chosen = {line.method: maps[line.method] for line in ends if line.method in maps}
        if chosen:
            samples.append(sample_html(image, map_cards(chosen, standings)))
    return "".join(samples)


def _behind(advice: Advice) -> str:
    """Paired differences per sample, as boxes; empty where there is no second method."""
    best, *lines = advice.table
    names = [line.method for line in lines if not line.control]
    if not names or best.images < 2:
        return ""
    styles = styles_of(names, [line.method for line in lines if line.control])
    rows = {name: (advice.values[best.method] - advice.values[name]).tolist() for name in styles}
    title = f"Behind {best.method}"
    chart = box_figure(title, "score of the best less that of the method", rows, styles)
    return charts_html({f"{title}: boxes of {', '.join(rows)}": chart})


def _left_out(advice: Advice) -> str:
    """Methods that were not raced, those with the same reason together, the quickest first."""
    groups: dict[str, list[str]] = {}
    for name in sorted(advice.left_out, key=lambda name: advice.too_slow.get(name, math.inf)):
        groups.setdefault(advice.left_out[name], []).append(name)
    rows = [
        (", ".join(names), "too slow" if names[0] in advice.too_slow else "left out", reason)
        for reason, names in groups.items()
    ]
    return part("table", head=("methods", "", "why"), rows=rows)
