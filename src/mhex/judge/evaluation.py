"""Judging methods on a model and its data: every method, every metric, every image, and rows of numbers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from numbers import Integral
from os import PathLike
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from mhex._progress import Bar, is_watched, progress_bar
from mhex.bundle import Bundle, as_bundle
from mhex.capture import Outputs, find_anatomy, unwrap
from mhex.errors import ArgumentError
from mhex.heads.predictors import check_answering
from mhex.inputs import prepare, with_window
from mhex.inputs.data import count_batches, count_samples
from mhex.inputs.samples import ALL, Samples, in_samples, look_for
from mhex.inputs.words import check_words
from mhex.judge import report as about
from mhex.judge.cases import Cache, Run, case_of, digests, finite_of, prepare_case
from mhex.judge.plan import (
    ClassNumbers,
    Judge,
    Judged,
    MethodGiven,
    MetricGiven,
    fingerprint,
    judged,
    judged_task,
    judges,
    outputs_of,
)
from mhex.judge.report import Report
from mhex.judge.rows import (
    Gaps,
    curve_keys_of,
    curve_rows_of,
    empty_curves,
    empty_rows,
    keys_of,
    rows_of,
    unjudged_in,
    warn_of,
    warn_of_lost,
)
from mhex.judge.saved_maps import Shown, check_pictures
from mhex.judge.store import CURVES, Parts
from mhex.metrics._curve import CurveMetric
from mhex.perturb import Subject
from mhex.targets import Task

NOT_FINITE = "the model's scores are not finite"


def evaluate(
    model: nn.Module | Bundle,
    data: Any,
    methods: str | Iterable[MethodGiven] = "all",
    metrics: str | Sequence[MetricGiven] = ("deletion", "insertion"),
    *,
    target: str | int = "predicted",
    class_names: Sequence[str] | Mapping[int, str] | None = None,
    controls: bool = True,
    limit: int | None = None,
    batch_size: int = 16,
    inner_batch: int | None = None,
    task: str | None = None,
    outputs: Outputs | None = None,
    evaluator: nn.Module | None = None,
    relabelled: nn.Module | None = None,
    preprocess: Callable[[Any], Tensor] | None = None,
    window: tuple[float, float] | None = None,
    tokenizer: Callable[..., Mapping[str, Any]] | None = None,
    seed: int = 0,
    out: str | PathLike[str] | None = None,
    cache: str | PathLike[str] | None = None,
    curves: bool = True,
    pictures: int = 0,
    progress: bool | None = None,
) -> Report:
    """Explain every image by every method, and judge the maps by every metric.

    A sample that cannot be read, or for which the model gives NaN, is left out; a warning and the report tell which.
    Passes are shared: the clean pass by everything, a sweep by all metrics that can read it, boxes and noise by all
    methods. Images, ties, boxes and seeds are the same for all methods, so that they can be compared in pairs.

    Args:
        model: A classifier, or a bundle from `mhex.load`.
        data: A loader of batches, a data set, a list, a generator, a tensor or a dictionary. Items are inputs alone,
            `(inputs, label)`, `(inputs, label, mask)`, or dictionaries with `label`, `mask`, `rationale`, `other`.
            Labels are class numbers or names. Masks are tensors, arrays or PIL images, of any size that lies on the
            whole image; see `mhex.inputs.masks` for their values. A sample without one is skipped where one is needed.
        methods: Names, or pairs of a name and its options; `"all"` for every method that serves the model.
        metrics: Names, `"name:preset"`, pairs of a name and parts of its protocol, or torchmetrics objects.
        target: The class that is explained: the `"predicted"` one, the `"label"`, a number or a name.
        class_names: Names of the model's outputs; those of the bundle or of the model's configuration if None.
        controls: Judge random, centred and edge maps too, which no method should be worse than.
        limit: The most images.
        batch_size: Images that are explained at once.
        inner_batch: The most samples in one pass of a sweep; None for what is good for the device.
        task: `"classification"`, or `"multi-label"` if each class has a sigmoid of its own, for maps and metrics; by
            default what the model's configuration, its heads or its end say. Regressions are refused: metrics judge
            classes.
        outputs: What the model returns, `"logits"` or `"probabilities"`, as for `mhex.explain`; by default it is
            recognised on the first batch.
        evaluator: Another model whose outputs are read; by default the explained one. What it returns is recognised.
        relabelled: A model of the same kind trained on permuted labels, for `randomization` with `mode="labels"`.
        preprocess: As for `mhex.explain`.
        window: As for `mhex.explain`.
        tokenizer: As for `mhex.explain`.
        seed: Of methods, ties, boxes and noise.
        out: Folder for rows; a run that was broken off goes on from what is there. Rows are known by image, method and
            protocol; a folder of another model, target, task or seed is refused.
        cache: Folder for maps, to be judged again later.
        curves: Keep the curves of metrics that read a sweep, for `Report.curves` and pages.
        pictures: Of so many samples, the first, keep a small picture and the maps by all methods in the folder, for
            the pages of `mhex report`.
        progress: Draw progress bars with what is being done and the time that is left; None for those who watch: in a
            terminal or a notebook.

    Returns:
        The report, with one row per image, method, metric and number.
    """
    bundle = as_bundle(model)
    inner = unwrap(bundle.model)
    if isinstance(target, bool) or not isinstance(target, (str, Integral)):
        raise ArgumentError(f"Expected target 'predicted', 'label', or a class by number or name, but got {target!r}.")
    check_pictures(pictures, out)
    if evaluator is None or target == "predicted":
        check_answering(inner, "its outputs are judged")
    if evaluator is not None:
        check_answering(unwrap(evaluator), "its outputs are judged")
    lost: dict[int, str] = {}
    batches = in_samples(data, batch_size, limit, lost)
    first = next(batches)
    seen = with_window(preprocess or bundle.preprocess, window, first.inputs)
    reading: Any = {"preprocess": seen, "tokenizer": tokenizer or bundle.tokenizer}
    subject = Subject(inner, first.inputs, outputs=outputs, **reading)
    sort, read = judged_task(subject, task), outputs_of(subject)
    names = bundle.class_names if class_names is None else class_names
    numbers = ClassNumbers(inner, names, lambda: subject.raw_logits)
    if target not in ("predicted", "label"):
        target = int(numbers([target])[0])
    told = told_of(inner, evaluator, relabelled, target, sort, seed, read)
    folder = None if out is None else Path(out)
    run = Run(
        inner,
        inner if evaluator is None else unwrap(evaluator),
        None if relabelled is None else unwrap(relabelled),
        reading["preprocess"],
        reading["tokenizer"],
        target,
        seed,
        inner_batch,
        None if cache is None else Cache(Path(cache), fingerprint(inner), sort, read),
        Parts(folder, told),
        sort,
        read,
        curves=Parts(folder, told, CURVES) if curves else None,
        shown=Shown(folder, told, pictures, numbers.names) if folder is not None and pictures else None,
        lost=lost,
    )
    chosen, by = _plan(run, first, methods, metrics, controls)
    asked = [name for one in by for name in one.needs] + ["label"] * (target == "label")
    run = replace(run, needs=frozenset(asked))
    held = _held(run, by, first, batches)
    made = {"methods": [method.label for method in chosen], "metrics": [metric.label for metric in by]}
    call = {"model": bundle.name or type(inner).__name__, **made, "batch_size": batch_size}
    watched, pieces = is_watched(progress), count_batches(data, batch_size, limit)
    size = count_samples(data, first.items, limit)
    if folder is not None:
        about.note(folder, call, samples=size)
    with progress_bar(None if pieces is None else pieces * len(chosen), watched, "reading") as bar:
        for samples in chain(held, batches):
            span = f"samples {samples.ids[0] + 1} to {samples.ids[-1] + 1}" + ("" if size is None else f" of {size}")
            judge_batch(
                run,
                samples.numbered(numbers),
                _followed(chosen, bar),
                by,
                progress=watched,
                say=lambda what, span=span: bar.say(f"{span}, {what}"),  # type: ignore[misc]
            )
    rows = run.parts.table()
    lost.update(dict.fromkeys(unjudged_in(rows), NOT_FINITE))  # also by an earlier call in the same folder
    count = max((samples.ids[-1], *lost)) + 1
    if folder is not None:
        about.note(folder, call, samples=size, done=count, lost=lost)
    warn_of(run.skipped, count)
    warn_of_lost(lost, count)
    return Report(rows, None if run.curves is None else run.curves.table(), lost)


def _followed(methods: Iterable[Judged], bar: Bar) -> Iterator[Judged]:
    """Methods, with the bar moved on when one is done."""
    for method in methods:
        yield method
        bar.advance()


def _plan(run: Run, samples: Samples, methods: Any, metrics: Any, controls: bool) -> tuple[list[Judged], list[Judge]]:
    """What is judged by what, refused where the model does not allow it."""
    prepared = prepare(run.model, samples.inputs, run.preprocess, run.tokenizer)
    anatomy = find_anatomy(run.model, prepared.batch)
    chosen = judges(metrics, anatomy.modality, run.seed)
    if any("rationale" in one.needs for one in chosen):
        check_words(prepared)
    for one in chosen:
        if run.relabelled is None and getattr(one.metric.protocol, "mode", None) == "labels":
            raise ArgumentError(
                f"Metric {one.label!r} compares with a model that was trained on permuted labels, but there is none; "
                "give it as relabelled=."
            )
    return judged(methods, anatomy, controls), chosen


def _held(run: Run, metrics: list[Judge], first: Samples, rest: Iterator[Samples]) -> list[Samples]:
    """The first batches, read until it is sure that the data has what metrics and the target need."""
    held = [first]
    for one in metrics:
        for name in one.needs:
            look_for(name, f"Metric {one.label!r}", held, rest)
    if run.target == "label":
        look_for("label", "target='label'", held, rest)
    return held


def judge_batch(
    run: Run,
    samples: Samples,
    methods: Iterable[Judged],
    metrics: list[Judge],
    progress: bool = False,
    say: Callable[[str], None] = lambda what: None,
) -> None:
    """Rows of one batch; what is there already is left out, and so is all that only it would need.

    Samples for which the model gives NaN or infinity have rows of NaN, and are noted in `run.lost`.

    Args:
        run: What does not change from batch to batch.
        samples: The batch.
        methods: Each is taken when the one before it is done.
        metrics: By which they are judged.
        progress: Draw progress bars of long work inside.
        say: Told which method and metric is at work.
    """
    for name in run.needs.intersection(ALL):
        samples.check(name)
    subject = _subject(run, samples, progress)
    marks = digests(samples, subject)
    sound: _Sound | None = None
    for method in methods:
        wanted = [metric for metric in metrics if not _done(run, samples, marks, method, metric)]
        if not wanted and not (run.shown is not None and run.shown.lacks(samples.ids, marks, method)):
            continue
        if sound is None:
            sound = _sound(run, samples, subject, marks, progress)
        if sound.lost:
            run.parts.add([row for metric in wanted for row in empty_rows(*sound.lost, method, metric)])
            if run.curves is not None:
                run.curves.add(row for metric in wanted for row in empty_curves(*sound.lost, method, metric))
        if sound.subject is not None:
            say(f"{method.label}: maps")
            _judge(run, sound.samples, sound.subject, sound.marks, method, wanted, say)


def _judge(
    run: Run,
    samples: Samples,
    subject: Subject,
    marks: tuple[str, ...],
    method: Judged,
    wanted: list[Judge],
    say: Callable[[str], None],
) -> None:
    """Rows of samples whose outputs are finite, by one method."""
    prepare_case(run, samples, subject)  # once for all methods, and no part of their time
    started = time.perf_counter()
    gaps = Gaps(samples.ids)
    case = case_of(run, samples, marks, method, subject, gaps)
    seconds = (time.perf_counter() - started) / len(samples.ids)
    case.plan([judge.metric.sweep for judge in wanted if isinstance(judge.metric, CurveMetric)])
    if run.shown is not None and run.shown.lacks(samples.ids, marks, method):
        run.shown.keep(case, marks, method)
    rows: list[dict[str, Any]] = []
    curves: list[dict[str, Any]] = []
    for metric in wanted:
        say(f"{method.label}: {metric.label}")
        if run.curves is not None:
            curves += curve_rows_of(case, gaps, marks, method, metric)
        rows += rows_of(case, gaps, marks, method, metric, seconds)
    if run.curves is not None:
        run.curves.add(curves)
    run.parts.add(rows)
    if gaps.lost:
        run.skipped.setdefault(method.label, set()).update(gaps.lost)


@dataclass(frozen=True)
class _Sound:
    """A batch without the samples for which the model gives NaN or infinity.

    Attributes:
        samples, marks: Those that are left, and their digests.
        subject: Of them; None if none is left.
        lost: Numbers and digests of the others; empty if there are none.
    """

    samples: Samples
    marks: tuple[str, ...]
    subject: Subject | None
    lost: tuple[tuple[int, ...], tuple[str, ...]] | tuple[()]


def _sound(run: Run, samples: Samples, subject: Subject, marks: tuple[str, ...], progress: bool) -> _Sound:
    finite = finite_of(run, samples, subject).tolist()
    if all(finite):
        return _Sound(samples, marks, subject, ())
    left, gone = ([k for k, fine in enumerate(finite) if fine is wanted] for wanted in (True, False))
    run.lost.update({samples.ids[k]: NOT_FINITE for k in gone})
    lost = tuple(samples.ids[k] for k in gone), tuple(marks[k] for k in gone)
    part = samples.only(left)
    return _Sound(part, tuple(marks[k] for k in left), _subject(run, part, progress) if left else None, lost)


def _subject(run: Run, samples: Samples, progress: bool) -> Subject:
    return Subject(
        run.evaluator,
        samples.inputs,
        samples.label,
        samples.ids,
        preprocess=run.preprocess,
        tokenizer=run.tokenizer,
        multi_label=run.task == "multi-label",
        outputs=run.outputs if run.evaluator is run.model else None,
        batch_size=run.inner_batch,
        progress=progress,
    )


def _done(run: Run, samples: Samples, marks: tuple[str, ...], method: Judged, metric: Judge) -> bool:
    """Whether all rows and curves are there already; all of them are noted as asked for."""
    whose = (samples.ids, marks, method, metric)
    lacking = run.parts.lacks(keys_of(*whose))
    return not (run.curves is not None and run.curves.lacks(curve_keys_of(*whose))) and not lacking


def told_of(
    model: nn.Module, evaluator: Any, relabelled: Any, target: Any, task: Task, seed: int, outputs: Outputs
) -> str:
    """What makes rows comparable beside what stands in them."""
    models = {"model": model, "evaluator": evaluator, "relabelled": relabelled}
    told = {name: fingerprint(None if one is None else unwrap(one)) for name, one in models.items()}
    read = {} if outputs == "logits" else {"outputs": outputs}
    return json.dumps({**told, "target": str(target), "task": task, **read, "seed": seed})
