"""The page that recommend.py writes: full benchmarks, and races beside them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scipy import stats

from recommend_rating import Full, Judgement, judged, percent

_INTRO = """# Recommendations beside a full benchmark

Does a short run of `mhex.recommend` name a method that a full benchmark of the same model does not rate significantly
worse than its best, and does it flag the methods that are no better than random maps? Made by
`benchmarks/recommend.py`, with the commands below. The benchmark judges all methods on test photos by the metric
[`balanced`](../metrics/balanced.md), for the predicted class, seed 0; each race is run on other test photos. Both test
by flips of signs of paired differences, for all methods together, at 0.05 (see [recommend](../recommend.md)).

What was looked at before: `balanced` went from 5 to 3 steps after a look at 16 photos of pets whose split was not
noted, and the rules of the race were tried by replaying rows of test photos of an older `pets-vit`. The benchmark and
the races below are of a newer network. Since then the race has changed in one thing, how it measures what methods cost:
waiting for other programs counts little. `lrp`, `partial-lrp`, `attnlrp` and `vit-cx` have other defaults than when the
race was made, and so other places. Each race had two cores of a machine of sixteen for itself; five ran at a time, each
seed begun by itself and not by the one command below, which runs them in turn with the same functions. The code of the
benchmark and of the races was a little older than that of this page, with the same defaults of all methods.

A race gives its first round some twelve photos per method, so that it flags methods as not shown to be above random
maps which 400 photos tell from them: such flags are called false below."""


def page(out: Path, models: Sequence[str]) -> str:
    """The page, in Markdown.

    Args:
        out: With a folder for each model, which holds `full` and `seed-N.json`.
        models: Names of the models.
    """
    parts = [_INTRO]
    for name in models:
        full = Full.load(out / name / "full")
        files = sorted((out / name).glob("seed-*.json"), key=lambda path: int(path.stem.removeprefix("seed-")))
        answers = [json.loads(file.read_text(encoding="utf-8")) for file in files]
        parts += [f"## {name}", _benchmark(full)]
        if answers:
            parts.append(_races(full, answers))
    return "\n\n".join(parts) + "\n"


def _benchmark(full: Full) -> str:
    commands = dict.fromkeys(
        f"`python benchmarks/{_plain(call['command'])}`" for call in full.calls if call.get("command")
    )
    found = full.outcome
    lines = [
        f"Full benchmark: {full.images} photos (their order by seed 2024), seed 0"
        + (f", by {', '.join(commands)}" if commands else "")
        + f". {full.score.words} *Behind* is the best less the method, in units of the score, on the photos that both "
        "have, with its simultaneous 95 % interval.",
        "",
        "| method | photos | behind | worse? | beside random maps |",
        "|---|---|---|---|---|",
    ]
    for name in found.order:
        mean, low, high = found.behind[name]
        own = "the best | " if name == found.best else f"{mean:.3f} ({low:.3f} to {high:.3f}) | {found.worse[name]}"
        lines.append(f"| `{name}` | {found.images[name]} | {own} | {full.higher[name]} |")
    equal = ", ".join(f"`{name}`" for name in full.good)
    weak = ", ".join(f"`{name}`" for name in found.order if name in full.weak) or "none"
    return "\n".join(
        [*lines, "", f"Best, or not significantly worse: {equal}. Not shown to be above random maps: {weak}."]
    )


def _plain(command: str) -> str:
    """A command without folders, which change no number."""
    return re.sub(r" --(out|page)[ =]\S+", "", command)


def _races(full: Full, answers: Sequence[Mapping[str, Any]]) -> str:
    found = [judged(full, answer) for answer in answers]
    commands = ", ".join(dict.fromkeys(f"`{_plain(answer['command'])}`" for answer in answers))
    first = answers[0]
    right, hits = sum(one.right for one in found), sum(len(one.hits) for one in found)
    flags = hits + sum(len(one.false) for one in found)
    weak = hits + sum(len(one.misses) for one in found)
    seeds = f"seeds {first['seed']} to {answers[-1]['seed']}"
    lines = [
        f"Races: budget {first['budget']:g} s ({first['clock']} clock), {seeds}, by {commands}.",
        "",
        "| seed | recommended | rated worse? | sure | photos, first and last round | seconds | flags: right, missed, "
        "false | weak, but not told |",
        "|---|---|---|---|---|---|---|---|",
        *(_row(full, answer, one) for answer, one in zip(answers, found, strict=True)),
        "",
        f"- **{_share(right, len(found))}** seeds name a method that the full benchmark does not rate significantly "
        "worse than its best.",
        f"- Of the methods that a race flags as no better than random maps, {_share(flags and hits, flags)} are not "
        "shown to be above them by the benchmark either.",
        f"- Of those that the benchmark does not show to be above, {_share(hits, weak)} are flagged, where the race "
        "had enough photos to tell.",
    ]
    return "\n".join(lines)


def _row(full: Full, answer: Mapping[str, Any], one: Judgement) -> str:
    mean, low, high = full.outcome.behind[one.pick]
    rated = "the best" if one.pick == full.outcome.best else f"{mean:.3f} ({low:.3f} to {high:.3f}) behind"
    rounds = answer["rounds"]
    flags = f"{len(one.hits)}, {len(one.misses)}, {len(one.false)}"
    named = f" ({', '.join((*one.misses, *one.false))})" if one.misses or one.false else ""
    return (
        f"| {answer['seed']} | `{one.pick}` | {'no' if one.right else '**yes**'}: {rated} | "
        f"{percent(answer['sure'])} | {rounds[0][1]}, {rounds[-1][1]} | {answer['used']:.0f} | {flags}{named} | "
        f"{', '.join(one.untold)} |"
    )


def _share(part: int, whole: int) -> str:
    """A count with its exact 95 % interval."""
    if not whole:
        return "0 of 0"
    ends = stats.binomtest(part, whole).proportion_ci(0.95)
    return f"{part} of {whole} (95 % interval {100 * ends.low:.0f} to {100 * ends.high:.0f} %)"
