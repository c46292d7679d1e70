"""Judging methods on a model and its data: every method, every metric, every image, and rows of numbers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from numbers import Integral
from os import PathLike
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from mhex._progress import track
from mhex.bench import about
from mhex.bench.batching import count_batches
from mhex.bench.cache import Cache
from mhex.bench.cases import Run, case_of, digests, prepare_case
from mhex.bench.classes import ClassNumbers
from mhex.bench.gaps import Gaps, warn_of
from mhex.bench.plan import Judge, Judged, MethodGiven, MetricGiven, fingerprint, judged, judges
from mhex.bench.report import Report
from mhex.bench.rows import curve_keys_of, curves_of, keys_of, rows_of
from mhex.bench.samples import ALL, Samples, in_samples, look_for
from mhex.bench.shown import Shown, check_pictures
from mhex.bench.store import CURVES, Parts
from mhex.bench.tasks import judged_task
from mhex.bundle import Bundle, as_bundle
from mhex.capture import find_anatomy, unwrap
from mhex.errors import ArgumentError
from mhex.inputs import prepare
from mhex.metrics._curve import CurveMetric
from mhex.metrics._rationales import check_words
from mhex.perturb import Subject
from mhex.targets import Task


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
    evaluator: nn.Module | None = None,
    relabelled: nn.Module | None = None,
    preprocess: Callable[[Any], Tensor] | None = None,
    tokenizer: Callable[..., Mapping[str, Any]] | None = None,
    seed: int = 0,
    out: str | PathLike[str] | None = None,
    cache: str | PathLike[str] | None = None,
    curves: bool = True,
    pictures: int = 0,
    progress: bool = False,
) -> Report:
    """Explain every image by every method, and judge the maps by every metric.

    Passes are shared: the clean pass by everything, a sweep by all metrics that can read it, boxes and noise by all
    methods. Images, ties, boxes and seeds are the same for all methods, so that they can be compared in pairs.

    Args:
        model: A classifier that returns logits, or a bundle from `mhex.load`.
        data: A loader of batches, a data set, a list, a generator, a tensor or a dictionary. Items are inputs alone,
            `(inputs, label)`, `(inputs, label, mask)`, or dictionaries with `label`, `mask`, `rationale`, `other`.
            Labels are class numbers or names. Masks are tensors, arrays or PIL images, of any size that lies on the
            whole image; see `mhex.bench.masks` for their values. A sample without one is skipped where one is needed.
        methods: Names, or pairs of a name and its options; `"all"` for every method that serves the model.
        metrics: Names, `"name:preset"`, pairs of a name and parts of its protocol, or torchmetrics objects.
        target: The class that is explained: the `"predicted"` one, the `"label"`, a number or a name.
        class_names: Names of the model's outputs; those of the bundle or of the model's configuration if None.
        controls: Judge random, centred and edge maps too, which no method should be worse than.
        limit: The most images.
        batch_size: Images that are explained at once.
        inner_batch: The most samples in one pass of a sweep; None for what is good for the device.
        task: `"classification"`, or `"multi-label"` if each class has a sigmoid of its own, for maps and metrics; by
            default what the model's configuration or its heads say. Regressions are refused: metrics judge classes.
        evaluator: Another model whose outputs are read; by default the explained one.
        relabelled: A model of the same kind trained on permuted labels, for `randomization` with `mode="labels"`.
        preprocess: As for `mhex.explain`.
        tokenizer: As for `mhex.explain`.
        seed: Of methods, ties, boxes and noise.
        out: Folder for rows; a run that was broken off goes on from what is there. Rows are known by image, method and
            protocol; a folder of another model, target, task or seed is refused.
        cache: Folder for maps, to be judged again later.
        curves: Keep the curves of metrics that read a sweep, for `Report.curves` and pages.
        pictures: Of so many samples, the first, keep a small picture and the maps by all methods in the folder, for
            the pages of `mhex report`.
        progress: Draw progress bars with the time that is left.

    Returns:
        The report, with one row per image, method, metric and number.
    """
    bundle = as_bundle(model)
    inner = unwrap(bundle.model)
    sort = judged_task(inner, task)
    if isinstance(target, bool) or not isinstance(target, (str, Integral)):
        raise ArgumentError(f"Expected target 'predicted', 'label', or a class by number or name, but got {target!r}.")
    check_pictures(pictures, out)
    reading: Any = {"preprocess": preprocess or bundle.preprocess, "tokenizer": tokenizer or bundle.tokenizer}
    batches = in_samples(data, batch_size, limit)
    first = next(batches)
    numbers = ClassNumbers(
        inner,
        bundle.class_names if class_names is None else class_names,
        lambda: Subject(inner, first.inputs, **reading).logits,
    )
    if target not in ("predicted", "label"):
        target = int(numbers([target])[0])
    told, folder = told_of(inner, evaluator, relabelled, target, sort, seed), None if out is None else Path(out)
    run = Run(
        inner,
        inner if evaluator is None else unwrap(evaluator),
        None if relabelled is None else unwrap(relabelled),
        reading["preprocess"],
        reading["tokenizer"],
        target,
        seed,
        inner_batch,
        None if cache is None else Cache(Path(cache), fingerprint(inner), sort),
        Parts(folder, told),
        sort,
        curves=Parts(folder, told, CURVES) if curves else None,
        shown=Shown(folder, told, pictures, numbers.names) if folder is not None and pictures else None,
    )
    chosen, by = _plan(run, first, methods, metrics, controls)
    asked = [name for one in by for name in one.needs] + ["label"] * (target == "label")
    run = replace(run, needs=frozenset(asked))
    held = _held(run, by, first, batches)
    if folder is not None:
        made = {"methods": [one.label for one in chosen], "metrics": [one.label for one in by]}
        about.note(folder, {"model": bundle.name or type(inner).__name__, **made, "batch_size": batch_size})
    for samples in _tracked(chain(held, batches), count_batches(data, batch_size, limit), progress):
        judge_batch(run, samples.numbered(numbers), chosen, by, progress=progress)
    warn_of(run.skipped, samples.ids[-1] + 1)
    return Report(run.parts.table(), None if run.curves is None else run.curves.table())


def _tracked(batches: Iterator[Samples], count: int | None, progress: bool) -> Iterator[Samples]:
    """Batches under a progress bar, which has an end where their number is known."""
    if count is None:
        yield from track(batches, "batches", progress)
        return
    for _ in track(range(count), "batches", progress):
        found = next(batches, None)
        if found is None:
            return
        yield found
    yield from batches


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


def judge_batch(run: Run, samples: Samples, methods: Iterable[Judged], metrics: list[Judge], progress: bool) -> None:
    """Rows of one batch; what is there already is left out, and so is all that only it would need.

    A method is taken from `methods` when the one before it is done.
    """
    for name in run.needs.intersection(ALL):
        samples.check(name)
    subject = Subject(
        run.evaluator,
        samples.inputs,
        samples.label,
        samples.ids,
        preprocess=run.preprocess,
        tokenizer=run.tokenizer,
        multi_label=run.task == "multi-label",
        batch_size=run.inner_batch,
        progress=progress,
    )
    marks = digests(samples, subject)
    for method in methods:
        wanted = [one for one in metrics if not _done(run, samples, marks, method, one)]
        drawn = run.shown is not None and run.shown.lacks(samples.ids, marks, method)
        if not wanted and not drawn:
            continue
        prepare_case(run, samples, subject)  # once for all methods, and no part of their time
        started = time.perf_counter()
        gaps = Gaps(samples.ids)
        case = case_of(run, samples, marks, method, subject, gaps)
        seconds = (time.perf_counter() - started) / len(samples.ids)
        case.plan([one.metric.sweep for one in wanted if isinstance(one.metric, CurveMetric)])
        if run.shown is not None and drawn:
            run.shown.keep(case, marks, method)
        if run.curves is not None:
            run.curves.add(row for one in wanted for row in curves_of(case, gaps, marks, method, one))
        run.parts.add([row for one in wanted for row in rows_of(case, gaps, marks, method, one, seconds)])
        if gaps.lost:
            run.skipped.setdefault(method.label, set()).update(gaps.lost)


def _done(run: Run, samples: Samples, marks: tuple[str, ...], method: Judged, metric: Judge) -> bool:
    """Whether all rows and curves are there already; all of them are noted as asked for."""
    whose = (samples.ids, marks, method, metric)
    lacking = run.parts.lacks(keys_of(*whose))
    return not (run.curves is not None and run.curves.lacks(curve_keys_of(*whose))) and not lacking


def told_of(model: nn.Module, evaluator: Any, relabelled: Any, target: Any, task: Task, seed: int) -> str:
    """What makes rows comparable beside what stands in them."""
    models = {"model": model, "evaluator": evaluator, "relabelled": relabelled}
    told = {name: fingerprint(None if one is None else unwrap(one)) for name, one in models.items()}
    return json.dumps({**told, "target": str(target), "task": task, "seed": seed})
