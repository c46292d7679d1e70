"""Which method to use: a race on the user's own model and data, under a time budget."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from mhex.bench.budget import Clock, Watch, seconds_of
from mhex.bench.cases import Run
from mhex.bench.classes import ClassNumbers
from mhex.bench.controls import PREFIX, RANDOM
from mhex.bench.gathering import explain_seconds
from mhex.bench.judging import told_of
from mhex.bench.outcome import above, outcome_of, said
from mhex.bench.plan import MethodGiven, judged
from mhex.bench.race import Race
from mhex.bench.recommendation import Line, Recommendation
from mhex.bench.samples import look_for
from mhex.bench.sampling import Pieces, shuffled
from mhex.bench.scoring import Given, score_of
from mhex.bench.store import Parts
from mhex.bench.tasks import judged_task
from mhex.bundle import Bundle, as_bundle
from mhex.capture import find_anatomy, unwrap
from mhex.errors import ArgumentError
from mhex.perturb import Subject
from mhex.registry import all_methods


def recommend(
    model: nn.Module | Bundle,
    data: Any,
    budget: float | str = "2 min",
    *,
    methods: str | Iterable[MethodGiven] = "all",
    score: Given = "balanced",
    images: int | None = None,
    class_names: Sequence[str] | Mapping[int, str] | None = None,
    task: str | None = None,
    preprocess: Callable[[Any], Tensor] | None = None,
    tokenizer: Callable[..., Mapping[str, Any]] | None = None,
    seed: int = 0,
    say: Callable[[str], None] | None = None,
    clock: Clock = time.perf_counter,
) -> Recommendation:
    """Race methods on a model and a sample of its data, and say which one to use.

    One image is explained by every method that serves the model; those too slow for the budget are left out. The others
    are raced by successive halving: in each round all who are left are judged on the same further images, and the
    better half goes on. Random, centred and edge maps take part, and can never be recommended. The predicted class is
    explained.

    Args:
        model: A classifier that returns logits, or a bundle from `mhex.load`.
        data: As for `mhex.evaluate`. Sequences and tensors are sampled at random, loaders and generators are read from
            their beginning.
        budget: Seconds, or text such as `"2 min"`. It is kept to within about a fifth.
        methods: Names, or pairs of a name and its options; `"all"` for every method that serves the model.
        score: By what methods are raced: `"balanced"`, weights of its parts (`{"faithfulness": 1, "stability": 1}`), or
            another metric, as for `mhex.evaluate`. The default weighs faithfulness both ways by 0.5, class sensitivity
            and stability by 0.25 each, in units of their spread over methods.
        images: The most images; None for as many as the budget allows.
        class_names: As for `mhex.evaluate`.
        task: As for `mhex.evaluate`.
        preprocess: As for `mhex.explain`.
        tokenizer: As for `mhex.explain`.
        seed: Of the sample, of methods, ties and noise. Given the same number of images in each round, everything is
            the same.
        say: Told what is being done, for a progress display.
        clock: From nothing to seconds.
    """
    watch = Watch(seconds_of(budget), clock)
    race = entered(
        model,
        Pieces(shuffled(data, seed), images),
        watch,
        methods=methods,
        score=score,
        class_names=class_names,
        task=task,
        preprocess=preprocess,
        tokenizer=tokenizer,
        seed=seed,
    )
    race.say = say or race.say
    race.go(race.forward())
    return told(race, seed)


def entered(
    model: nn.Module | Bundle,
    pieces: Pieces,
    watch: Watch,
    *,
    methods: str | Iterable[MethodGiven] = "all",
    score: Given = "balanced",
    class_names: Sequence[str] | Mapping[int, str] | None = None,
    task: str | None = None,
    preprocess: Callable[[Any], Tensor] | None = None,
    tokenizer: Callable[..., Mapping[str, Any]] | None = None,
    seed: int = 0,
    out: Path | None = None,
) -> Race:
    """A race that has not begun; arguments as for `recommend`, and a folder for rows."""
    bundle = as_bundle(model)
    inner = unwrap(bundle.model)
    sort = judged_task(inner, task)
    reading: Any = {"preprocess": preprocess or bundle.preprocess, "tokenizer": tokenizer or bundle.tokenizer}
    first = pieces.get(0)
    assert first is not None  # empty data is refused before
    subject = Subject(inner, first.inputs, **reading)
    anatomy = find_anatomy(inner, subject.batch)
    chosen = score_of(score, anatomy.modality, seed)
    for name in chosen.judge.needs:
        look_for(name, f"The score {chosen.judge.label!r}", [first], iter(()))
    numbers = ClassNumbers(inner, class_names or bundle.class_names, lambda: subject.logits)
    pieces.change(lambda samples: samples.numbered(numbers))
    given = methods if isinstance(methods, str) else list(methods)
    wanted = [one for one in ([given] if isinstance(given, str) else given) if not str(one).startswith(PREFIX)]
    if given and not wanted:
        raise ArgumentError("Expected methods, but got control maps alone: they take part, and are never recommended.")
    entrants = judged("all" if given == "all" else wanted, anatomy, controls=True)
    run = Run(
        inner,
        inner,
        None,
        reading["preprocess"],
        reading["tokenizer"],
        "predicted",
        seed,
        None,
        None,
        Parts(out, told_of(inner, None, None, "predicted", sort, seed)),
        sort,
        needs=frozenset(chosen.judge.needs),
        redraw=True,
    )
    race = Race(run, chosen, pieces, watch, entrants)
    if given == "all":
        race.left_out.update({m.name: why for m in all_methods().values() if (why := m.refusal(anatomy))})
    return race


def told(race: Race, seed: int) -> Recommendation:
    """The answer of a race that is over."""
    if not race.last:
        reasons = "; ".join(f"{name}: {why}" for name, why in race.left_out.items())
        raise ArgumentError(f"Expected at least one method that can be raced, but all were left out: {reasons}.")
    report = race.report
    raced = [one for one in race.entrants if one.label in race.seconds]
    names = [one.label for one in raced if not one.control]
    values, faithful = race.score.values(report), race.score.faithful(report)
    found = outcome_of({name: values[name] for name in names}, race.last, seed)
    higher = above(faithful, RANDOM, names)
    controls = [one.label for one in raced if one.control]
    beside = outcome_of({found.best: values[found.best], **{one: values[one] for one in controls}}, [found.best], seed)
    seconds, parts = explain_seconds(report.rows), race.score.judge.metric.columns
    rows = report.values(race.score.judge.label)[1]

    def line(name: str) -> Line:
        own = found if name in found.behind else beside
        numbers = rows[name][rows[name].isfinite().all(1)].mean(0).tolist()
        is_control = name in controls
        return Line(
            name,
            *own.behind[name],
            dict(zip(parts, numbers, strict=True)),
            None if is_control else "no" if name == found.best else said(*found.worse[name]),
            higher.get(name),
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
        not_better_than_random=tuple(name for name in found.order if higher[name] == "no"),
        left_out=dict(race.left_out),
        table=tuple(line(name) for name in (*found.order, *beside.order[1:])),
        score=race.score.words,
        rounds=tuple(race.rounds),
        used=race.watch.used,
        budget=race.watch.budget,
        report=report,
    )
