"""The call `mhex.recommend`: a race of methods under a time budget, and the answer that it gives."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mhex._progress import is_watched, progress_bar
from mhex._settings import check_seed
from mhex.bundle import Bundle
from mhex.capture import Outputs
from mhex.errors import ArgumentError
from mhex.inputs.samples import Pieces, shuffled
from mhex.judge.controls import RANDOM
from mhex.judge.plan import MethodGiven
from mhex.judge.rows import explain_seconds
from mhex.recommend.answer import RankedMethod, Recommendation, check_folder
from mhex.recommend.race import Budget, Clock, Race, seconds_of, spoken
from mhex.recommend.result import behind_best, beside_random, means_with_spans, shown_above
from mhex.recommend.score import DEFAULT, ScoreGiven
from mhex.stats.simultaneous import MIN_IMAGES

_RESERVE_SHARE = 0.03  # of the budget, kept for the answer
_ANSWER_SECONDS, _PAGE_SECONDS = 0.5, 3.0  # kept in addition, for the answer and for its page
_MAX_RESERVE_SHARE = 0.15  # of the budget: the most that is kept
_STANDINGS = {"yes": "worse", "no": "indistinguishable", "undecided": "left early"}


def recommend(
    model: nn.Module | Bundle,
    data: Any,
    budget: float | str = "2 min",
    *,
    methods: str | Iterable[MethodGiven] = "all",
    score: ScoreGiven = DEFAULT,
    images: int | None = None,
    class_names: Sequence[str] | Mapping[int, str] | None = None,
    task: str | None = None,
    outputs: Outputs | None = None,
    preprocess: Callable[[Any], Tensor] | None = None,
    window: tuple[float, float] | None = None,
    tokenizer: Callable[..., Mapping[str, Any]] | None = None,
    seed: int = 0,
    out: str | PathLike[str] | None = None,
    say: Callable[[str], None] | None = None,
    progress: bool | None = None,
    clock: Clock = time.perf_counter,
) -> Recommendation:
    """Race methods on a model and a sample of its data, and say which one to use.

    One image is explained by every method that serves the model; those too slow for the budget are left out. The others
    are raced in rounds: all that are in the race are judged on the same further images, ten in the first round if there
    is time for them. After a round, methods leave that are shown to be worse than the best; and where time is short,
    methods that are far behind, which are then undecided. Control maps take part, and can never be recommended. The
    predicted class is explained. The race lasts until the budget or the samples are used, or one method is left.

    Args:
        model: A classifier, or a bundle from `mhex.load`.
        data: As for `mhex.evaluate`. Sequences and tensors are sampled at random, loaders and generators are read from
            their beginning.
        budget: Seconds, or text such as `"2 min"`, for all of it, with the page where there is one.
        methods: Names, or pairs of a name and its options; `"all"`, also among them, for every method that serves the
            model: `["all", ("attention", {"block": 3})]` races attention in the third block too.
        score: By what methods are raced: `"removal"`, `"balanced"`, weights of the parts of one of these
            (`{"agreement": 1, "deletion": 1}`), or another metric, as for `mhex.evaluate`. The default weighs agreement
            with losses of regions, insertion and deletion alike, in units of their spread over methods.
        images: The most images; None for as many as the budget allows.
        class_names: As for `mhex.evaluate`.
        task: As for `mhex.evaluate`.
        outputs: As for `mhex.evaluate`.
        preprocess: As for `mhex.explain`.
        window: As for `mhex.explain`.
        tokenizer: As for `mhex.explain`.
        seed: Seed of the sample, of methods, ties and noise. With the same number of images in each round, everything
            is the same.
        out: Folder for the answer as a page, with pictures and all rows, as `Recommendation.save` writes it.
        say: It is called with what is being done, for a display of one's own.
        progress: Draw a progress bar; None for a bar in a terminal or a notebook alone.
        clock: From nothing to seconds.

    Returns:
        The answer. A sample that cannot be read, or for which the model gives NaN, is left out, and the answer says so.
    """
    seed = check_seed("seed", seed)
    limit = Budget(seconds_of(budget), clock)
    if out is not None:
        check_folder(Path(out))
    samples, order = shuffled(data, seed)
    options: Any = {"class_names": class_names, "task": task, "outputs": outputs, "preprocess": preprocess}
    options |= {"window": window, "tokenizer": tokenizer, "seed": seed}
    race = Race(model, Pieces(samples, images, order), limit, methods=methods, score=score, **options)
    reserve = _RESERVE_SHARE * limit.seconds + _ANSWER_SECONDS + (0 if out is None else _PAGE_SECONDS)
    limit.reserve = min(_MAX_RESERVE_SHARE * limit.seconds, reserve)
    call = {
        "model": race.run.name,
        "methods": [method.label for method in race.entrants],
        "metrics": [race.score.metric.label],
        "budget": f"{limit.seconds:g} s",
    }
    with progress_bar(limit.seconds, is_watched(progress), "timing the model", "s") as bar:

        def tell(text: str) -> None:
            bar.say(text)
            bar.reach(limit.used)
            if say is not None:
                say(text)

        race.say = tell
        race.go()
        answer = answer_of(race, call, seed)
        if out is not None:
            race.say("drawing")
            answer.save(out)
    return answer


def answer_of(race: Race, call: Mapping[str, Any], seed: int = 0) -> Recommendation:
    """The answer of a race that is over; what is known of the call stands on the page."""
    rounds = race.rounds
    if rounds is None:
        raise ArgumentError(_refusal(race))
    report, raced, level = race.report, race.raced, rounds.level
    names = [method.label for method in raced if not method.control]
    controls = [method.label for method in raced if method.control]
    values = {name: scores for name, scores in race.score.values(report).items() if name in (*names, *controls)}
    result = rounds.result({name: values[name] for name in names})
    faithful, best = race.score.faithful(report), result.best
    higher = beside_random(faithful, RANDOM, names, best, level, seed)
    behind = {**behind_best({name: values[name] for name in (best, *controls)}, best, seed), **result.behind}
    seconds, parts = explain_seconds(report.rows), race.score.parts(report)
    table = {name: {"score": values[name], **parts[name]} for name in values}
    complete = {name: _complete_images(entries) for name, entries in table.items()}
    spans = {
        part: means_with_spans({name: entries[part] for name, entries in complete.items()}, seed)
        for part in next(iter(complete.values()))
    }

    def line(name: str) -> RankedMethod:
        worse = None if name in controls else result.worse[name]
        few = worse == "undecided" and name not in rounds.early
        standing = "control" if worse is None else "too few samples" if few else _STANDINGS[worse]
        standing = "best" if name == best and result.images[best] >= MIN_IMAGES else standing
        means = {part: spans[part][name][0] for part in spans}
        ends = {part: spans[part][name][1:] for part in spans}
        count, score = int(values[name].isfinite().sum()), means.pop("score")
        numbers = (*behind[name], score, means, ends)
        return RankedMethod(name, standing, *numbers, worse, higher.get(name), count, seconds[name])

    enough = result.images[best] >= MIN_IMAGES
    margin = behind[result.order[1]] if len(result.order) > 1 else None
    doubtful = {
        control: tuple(name for name, above in shown_above(faithful, control, names, level, seed).items() if not above)
        for control in controls
        if control != RANDOM and enough
    }
    winner = next(method for method in raced if method.label == best)
    last = sorted(controls, key=lambda name: behind[name][0])
    return Recommendation(
        method=winner.name,
        options=dict(winner.options),
        sure=result.sure,
        margin=margin if margin is not None and not math.isnan(margin[1]) else None,
        seconds=seconds[best],
        indistinguishable=result.equals,
        not_better_than_random=tuple(name for name in result.order if higher[name] == "negligible"),
        undecided=tuple(name for name in result.order if higher[name] == "undecided"),
        not_better_than_control=doubtful,
        left_early=tuple(name for name in result.order if name in rounds.early),
        left_out=dict(race.left_out),
        too_slow=dict(race.too_slow),
        table=tuple(line(name) for name in (*result.order, *last)),
        score=race.score.words,
        rounds=tuple(rounds.history),
        enough=race.enough,
        used=race.budget.used,
        budget=race.budget.seconds,
        report=report,
        values=values,
        saved_maps=race.run.saved_maps,
        call=call,
        lost=race.lost,
        exhausted=race.exhausted,
        accuracy=race.accuracy,
        load=race.budget.load,
    )


def _refusal(race: Race) -> str:
    """A sentence on a race that no method could begin."""
    if not race.too_slow:
        name, why = next(iter(race.left_out.items()))
        others = f", and {len(race.left_out) - 1} others likewise" if len(race.left_out) > 1 else ""
        return f"Expected at least one method that can be raced, but {name} cannot ({why}){others}."
    count, name = len(race.too_slow), min(race.too_slow, key=race.too_slow.__getitem__)
    subject = f"all of {count}; the quickest, {name}," if count > 1 else f"{name}, which"
    return (
        f"Expected a budget that is enough for one method at least, but {spoken(race.budget.seconds)} is too short for "
        f"{subject} needs about {spoken(race.too_slow[name])}. Give a longer budget, name quicker methods, or try "
        "again if the machine is busy."
    )


def _complete_images(numbers: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Numbers of each image (n,) by name, with NaN in all of them for images without one of them."""
    missing = ~torch.stack([values.isfinite() for values in numbers.values()]).all(0)
    return {name: values.double().cpu().masked_fill(missing.cpu(), torch.nan) for name, values in numbers.items()}
