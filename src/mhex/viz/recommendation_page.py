"""A recommendation as one HTML page that needs nothing else: the answer, the table, pictures, and how it was made."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from mhex._printable import escaped
from mhex.judge import report as about
from mhex.judge.controls import RANDOM
from mhex.judge.report import Evaluation
from mhex.judge.tables import FEWEST
from mhex.recommend.answer import by_reason
from mhex.recommend.race import spoken
from mhex.viz.report_page import cost, curves, facts, sample

if TYPE_CHECKING:
    from mhex.recommend.answer import RankedMethod, Recommendation

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
_BEHIND = (
    "The best less each method, one value per sample; above 0 the best is ahead. Boxes are the middle half, lines "
    "medians, diamonds means; whiskers reach to the last sample within 1.5 box lengths, dots are samples beyond."
)
_COST = "Median over samples of the time that a map took on this machine. The axis counts in powers of ten."
_RACE = (
    "All methods are judged on the same samples, and after each round the better half goes on. Random, centred and "
    "edge maps take part, and are never recommended."
)


def recommendation_page(found: Recommendation) -> str:
    """The page.

    Args:
        found: The recommendation.
    """
    from mhex.viz import Section, page

    model = str(found.call["model"])
    sections = [Section(title, inside, note) for title, inside, note in _parts(found)]
    return page(f"Which method explains {model} best?", found.sentences()[0], sections)


def _parts(found: Recommendation) -> Iterator[tuple[str, str, str]]:
    """Titles, pieces of HTML and notes."""
    one = _evaluation(found)
    yield "Answer", answer_html(found), ""
    yield "Methods", table_html(found), _TABLE
    if drawn := _pictures(found, one):
        yield "Maps", drawn, _PICTURES
    if drawn := _behind(found):
        yield "Behind the best", drawn, _BEHIND
    if drawn := curves(one):
        yield "Curves", drawn, ""
    yield "Cost per explanation", cost(one), _COST
    if found.left_out:
        yield "Not raced", _left_out(found), ""
    yield "Score and race", _how(found), ""
    yield "How it was made", facts(one), ""


def answer_html(found: Recommendation) -> str:
    """The answer as a list, and how to use it, in HTML; methods that were not raced have a place of their own."""
    slow = [name for name in found.left_out if name in found.too_slow]
    said = [one for one in found.sentences() if not one.startswith(("Left out:", "Too slow for this budget:"))]
    if slow:
        said.append(f"Too slow for a budget of {spoken(found.budget)}: {', '.join(slow)}.")
    listed = "".join(f"<li>{escaped(one)}</li>" for one in said)
    options = "".join(f", {name}={value!r}" for name, value in found.options.items())
    call = f"mhex.explain(model, inputs, {json.dumps(found.method)}{options})"
    return f"<ul>{listed}</ul><pre>{escaped(call)}</pre>"


def table_html(found: Recommendation) -> str:
    """The table, which scrolls sideways where it must, in HTML."""
    parts = list(found.table[0].parts)
    names = ["method", "standing", "above random?", "score", *parts, "behind the best", "samples", "a map takes"]
    head = "".join(f"<th>{escaped(name.replace('_', ' '))}</th>" for name in names)
    body = "".join(_row(found, line, parts) for line in found.table)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _row(found: Recommendation, line: RankedMethod, parts: Sequence[str]) -> str:
    _, *_, behind, standing, higher, samples, seconds = found.cells(line)
    numbers = [_number(line, "score", line.score), *(_number(line, name, line.parts[name]) for name in parts)]
    shown = [line.method, standing, higher, *numbers, behind, samples, seconds]
    best = line is found.table[0]
    inside = "".join(f"<td>{f'<b>{escaped(one)}</b>' if best else escaped(one)}</td>" for one in shown)
    kind = ' class="control"' if line.control else ""
    return f"<tr{kind}>{inside}</tr>"


def _number(line: RankedMethod, name: str, value: float) -> str:
    if math.isnan(value):
        return "—"
    low, high = line.spans[name]
    return f"{value:.2f}" + (f" ± {(high - low) / 2:.2f}" if line.images >= FEWEST else "")


def _evaluation(found: Recommendation) -> Evaluation:
    """The rows as pages of evaluations have them."""
    call = {**found.call, "command": about.command(), "versions": about.versions()}
    run = json.loads(found.report.rows.column("run")[0].as_py())
    raced = found.report.only([line.method for line in found.table])
    drawn = {} if found.saved_maps is None else found.saved_maps.explanations()
    return Evaluation("recommendation", raced, run, [call], drawn)


def _pictures(found: Recommendation, one: Evaluation) -> str:
    methods = [line for line in found.table if not line.control]
    ends = [*methods[:_BEST], *methods[_BEST:][-_WORST:], *(line for line in found.table if line.method == RANDOM)]
    said = {line.method: line.standing for line in ends if not line.control}
    parts = []
    for image, drawn in one.drawn.items():
        chosen = {line.method: drawn[line.method] for line in ends if line.method in drawn}
        if chosen:
            parts.append(sample(image, chosen, said))
    return "".join(parts)


def _behind(found: Recommendation) -> str:
    """Paired differences per sample, as boxes; empty where there is no other method."""
    from mhex.viz.plots import Boxed, box_plot, looks

    best, *others = found.table
    names = [line.method for line in others if not line.control]
    if not names or best.images < 2:
        return ""
    styles = looks(names, [line.method for line in others if line.control])
    rows = [
        Boxed(name, look, (found.values[best.method] - found.values[name]).tolist()) for name, look in styles.items()
    ]
    return f'<div class="charts">{box_plot(f"Behind {best.method}", "score of the best less this one", rows)}</div>'


def _left_out(found: Recommendation) -> str:
    """Methods that were not raced, those with the same reason together, the quickest first."""
    body = "".join(
        f"<tr><td>{escaped(', '.join(names))}</td>"
        f"<td>{'too slow' if names[0] in found.too_slow else 'left out'}</td><td>{escaped(why)}</td></tr>"
        for why, names in sorted(by_reason(found.left_out).items(), key=lambda one: _needed(found, one[1][0]))
    )
    return f"<table><thead><tr><th>methods</th><th></th><th>why</th></tr></thead><tbody>{body}</tbody></table>"


def _needed(found: Recommendation, name: str) -> float:
    return found.too_slow.get(name, math.inf)


def _how(found: Recommendation) -> str:
    used = f"{spoken(found.used)} of {spoken(found.budget)} were used, this page not counted."
    return "".join(f"<p>{escaped(one)}</p>" for one in (found.score, f"{_RACE} {found.course()} {used}"))
