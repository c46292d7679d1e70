"""Which method to use: a race on the user's own model and data, under a time budget."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from mhex._progress import is_watched, progress_bar
from mhex.bundle import Bundle, as_bundle
from mhex.capture import Outputs, find_anatomy, unwrap
from mhex.errors import ArgumentError
from mhex.heads.predictors import check_answering
from mhex.inputs import with_window
from mhex.inputs.samples import Pieces, Samples, look_for, losses_in_words, shuffled
from mhex.judge.cases import Run
from mhex.judge.controls import PREFIX
from mhex.judge.evaluation import NOT_FINITE, told_of
from mhex.judge.plan import ClassNumbers, MethodGiven, judged, judged_task, outputs_of
from mhex.judge.saved_maps import Shown
from mhex.judge.store import CURVES, Parts
from mhex.methods import all_methods
from mhex.perturb import Subject
from mhex.recommend.answer import Recommendation, answer_of, check_folder
from mhex.recommend.race import Clock, Race, Watch, seconds_of
from mhex.recommend.score import Given, score_of

_PICTURES = 3  # samples whose maps are kept for the page
_SHARE, _ANSWER, _PAGE = 0.03, 0.5, 3.0  # of the budget, and seconds, that are kept for the answer and for its page
_MOST = 0.15  # of the budget is the most that is kept


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
    are raced by successive halving: in each round all who are left are judged on the same further images, and the
    better half goes on, the first time after ten images if there is time for them. Random, centred and edge maps take
    part, and can never be recommended. The predicted class is explained.

    Args:
        model: A classifier, or a bundle from `mhex.load`.
        data: As for `mhex.evaluate`. Sequences and tensors are sampled at random, loaders and generators are read from
            their beginning.
        budget: Seconds, or text such as `"2 min"`, for all of it, with the page where there is one.
        methods: Names, or pairs of a name and its options; `"all"` for every method that serves the model.
        score: By what methods are raced: `"balanced"`, weights of its parts (`{"faithfulness": 1, "stability": 1}`), or
            another metric, as for `mhex.evaluate`. The default weighs faithfulness both ways by 0.5, class sensitivity
            and stability by 0.25 each, in units of their spread over methods.
        images: The most images; None for as many as the budget allows.
        class_names: As for `mhex.evaluate`.
        task: As for `mhex.evaluate`.
        outputs: As for `mhex.evaluate`.
        preprocess: As for `mhex.explain`.
        window: As for `mhex.explain`.
        tokenizer: As for `mhex.explain`.
        seed: Of the sample, of methods, ties and noise. Given the same number of images in each round, everything is
            the same.
        out: Folder for the answer as a page, with pictures and all rows, as `Recommendation.save` writes it.
        say: Told what is being done, for a display of one's own.
        progress: Draw a progress bar; None for those who watch: in a terminal or a notebook.
        clock: From nothing to seconds.

    Returns:
        The answer. A sample that cannot be read, or for which the model gives NaN, is left out, and the answer tells.
    """
    watch = Watch(seconds_of(budget), clock)
    if out is not None:
        check_folder(Path(out))
    samples, order = shuffled(data, seed)
    race = entered(
        model,
        Pieces(samples, images, order),
        watch,
        methods=methods,
        score=score,
        class_names=class_names,
        task=task,
        outputs=outputs,
        preprocess=preprocess,
        window=window,
        tokenizer=tokenizer,
        seed=seed,
    )
    race.reserve = min(_MOST * watch.budget, _SHARE * watch.budget + _ANSWER + (0 if out is None else _PAGE))
    made = {
        "model": as_bundle(model).name or type(race.run.model).__name__,
        "methods": [one.label for one in race.entrants],
        "metrics": [race.score.judge.label],
        "budget": f"{watch.budget:g} s",
    }
    with progress_bar(watch.budget, is_watched(progress), "timing the model", "s") as bar:

        def tell(what: str) -> None:
            bar.say(what)
            bar.reach(watch.used)
            if say is not None:
                say(what)

        race.say = tell
        race.go()
        found = answer_of(race, made, seed)
        if out is not None:
            race.say("drawing")
            found.save(out)
    return found


def entered(
    model: nn.Module | Bundle,
    pieces: Pieces,
    watch: Watch,
    *,
    methods: str | Iterable[MethodGiven] = "all",
    score: Given = "balanced",
    class_names: Sequence[str] | Mapping[int, str] | None = None,
    task: str | None = None,
    outputs: Outputs | None = None,
    preprocess: Callable[[Any], Tensor] | None = None,
    window: tuple[float, float] | None = None,
    tokenizer: Callable[..., Mapping[str, Any]] | None = None,
    seed: int = 0,
) -> Race:
    """A race that has not begun; arguments as for `recommend`."""
    bundle = as_bundle(model)
    inner = unwrap(bundle.model)
    check_answering(inner, "its outputs are judged")
    lost: dict[int, str] = {}
    reading: Any = {"preprocess": preprocess or bundle.preprocess, "tokenizer": tokenizer or bundle.tokenizer}
    first, subject = _first(inner, pieces, reading, window, outputs, lost)
    reading["preprocess"] = with_window(reading["preprocess"], window, first.inputs)
    sort, read = judged_task(subject, task), outputs_of(subject)
    if watch.clock is time.perf_counter and subject.device.type == "cpu":
        watch.work = time.process_time
    anatomy = find_anatomy(inner, subject.batch)
    chosen = score_of(score, anatomy.modality, seed)
    for name in chosen.judge.needs:
        look_for(name, f"The score {chosen.judge.label!r}", [first], iter(()))
    names = bundle.class_names if class_names is None else class_names
    numbers = ClassNumbers(inner, names, lambda: subject.logits)
    pieces.change(lambda samples: samples.numbered(numbers))
    given = methods if isinstance(methods, str) else list(methods)
    wanted = [one for one in ([given] if isinstance(given, str) else given) if not str(one).startswith(PREFIX)]
    if given and not wanted:
        raise ArgumentError("Expected methods, but got control maps alone: they take part, and are never recommended.")
    entrants = judged("all" if given == "all" else wanted, anatomy, controls=True)
    told = told_of(inner, None, None, "predicted", sort, seed, read)
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
        Parts(None, told),
        sort,
        read,
        curves=Parts(None, told, CURVES),
        shown=Shown(None, told, _PICTURES, numbers.names),
        needs=frozenset(chosen.judge.needs),
        redraw=True,
        lost=lost,
    )
    race = Race(run, chosen, pieces, watch, entrants)
    if given == "all":
        race.left_out.update({m.name: why for m in all_methods().values() if (why := m.refusal(anatomy))})
    return race


def _first(
    model: nn.Module,
    pieces: Pieces,
    reading: Mapping[str, Any],
    window: tuple[float, float] | None,
    outputs: Outputs | None,
    lost: dict[int, str],
) -> tuple[Samples, Subject]:
    """The first samples for which the model's outputs are finite; those before them are taken out, and noted."""
    while (samples := pieces.get(0)) is not None:
        seen: Any = {**reading, "preprocess": with_window(reading["preprocess"], window, samples.inputs)}
        subject = Subject(model, samples.inputs, ids=samples.ids, outputs=outputs, **seen)
        finite = subject.finite.tolist()
        if all(finite):
            return samples, subject
        lost.update({i: NOT_FINITE for i, fine in zip(samples.ids, finite, strict=True) if not fine})
        left = [place for place, fine in enumerate(finite) if fine]
        pieces.put(samples.only(left) if left else None)
    raise ArgumentError(f"Expected samples that can be judged, but none of {len(lost)} can: {losses_in_words(lost)}.")
