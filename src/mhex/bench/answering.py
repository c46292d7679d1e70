"""From a race that is over to its answer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mhex.bench.controls import RANDOM
from mhex.bench.costs import no_time
from mhex.bench.gathering import explain_seconds
from mhex.bench.outcome import Difference, Outcome, above, outcome_of
from mhex.bench.race import Race
from mhex.bench.recommendation import Line, Recommendation
from mhex.errors import ArgumentError
from mhex.metrics.resampling import bootstrap

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
