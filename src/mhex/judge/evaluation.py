"""Judging methods on a model and its data: every method, every metric, every image, and rows of numbers."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from numbers import Integral
from os import PathLike
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from mhex._progress import Bar, is_watched, progress_bar
from mhex._settings import check_seed, check_that
from mhex.bundle import Bundle
from mhex.capture import Outputs, find_anatomy
from mhex.errors import ArgumentError, CaptureError, MissingExtraError, UnsupportedModelError, warn
from mhex.inputs import Prepared
from mhex.inputs.data import count_batches, count_samples
from mhex.inputs.samples import ALL, Samples, in_samples, look_for, losses_in_words
from mhex.inputs.words import check_words
from mhex.judge.cases import Gaps, Run, SampleBatch, case_of
from mhex.judge.plan import EVERY, MethodGiven, MethodRun, MetricGiven, MetricRun, method_runs, metric_runs
from mhex.judge.report import Report, write_call
from mhex.judge.rows import RowGroup, curve_rows_of, rows_of, unjudged_in
from mhex.metrics.curve import CurveMetric

NOT_FINITE = "the model's scores are not finite"
CANNOT = (UnsupportedModelError, CaptureError, MissingExtraError)  # what a method may lack, known when it is tried


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

    A sample that cannot be read, or for which the model gives NaN, is left out; a warning and the report name it.
    Work is shared: a photo is preprocessed once, the clean pass serves everything, a sweep serves all metrics that can
    read it, boxes and noise serve all methods, and what two methods or metrics hide in the same way is run once
    (`Report.cost`). Images, ties, boxes and seeds are the same for all methods, so that they
    can be compared in pairs.

    Args:
        model: A classifier, or a bundle from `mhex.load`.
        data: A loader of batches, a data set, a list, a generator, a tensor or a dictionary. Items are inputs alone,
            `(inputs, label)`, `(inputs, label, mask)`, or dictionaries with `label`, `mask`, `rationale`, `other`.
            Labels are class numbers or names. Masks are tensors, arrays or PIL images, of any size that lies on the
            whole image; see `mhex.inputs.masks` for their values. A sample without one is skipped where one is needed.
        methods: Names, or pairs of a name and its options; `"all"`, also among them, for every method that serves the
            model; one that finds out at work that it cannot, with the first samples or with later ones, is then left
            out with a warning, and its rows for earlier samples are taken out of the report and of the folder.
        metrics: Names, `"name:preset"`, pairs of a name and parts of its protocol, or torchmetrics objects.
        target: The class that is explained: the `"predicted"` one, the `"label"`, a number or a name.
        class_names: Names of the model's outputs; those of the bundle or of the model's configuration if None.
        controls: Judge maps too that know nothing, which no method should be worse than: random, centred and edge
            maps of images; of texts random ones and those of the first and of the last words.
        limit: The most images.
        batch_size: Images that are explained at once.
        inner_batch: The most samples in one pass of a sweep; None for what is good for the device.
        task: `"classification"`, or `"multi-label"` if each class has a sigmoid of its own, for maps and metrics; by
            default what the model's configuration, its heads or its end say. Regressions are refused: metrics judge
            classes.
        outputs: What the model returns, `"logits"` or `"probabilities"`, as for `mhex.explain`; by default it is
            recognised on the first batch.
        evaluator: Another model whose outputs are read; by default the explained one. What it returns is recognised on
            the first batch.
        relabelled: A model of the same kind trained on permuted labels, for `randomization` with `mode="labels"`.
        preprocess: As for `mhex.explain`.
        window: As for `mhex.explain`.
        tokenizer: As for `mhex.explain`.
        seed: Seed of methods, ties, boxes and noise.
        out: Folder for rows; a run that was broken off goes on from what is there. Rows are known by image, method and
            protocol; a folder of another model, target, task or seed is refused.
        cache: Folder for maps, to be judged again later.
        curves: Keep the curves of metrics that read a sweep, for `Report.curves` and pages.
        pictures: Of so many samples, the first, keep a small picture and the maps by all methods in the folder, for
            the pages of `mhex report`.
        progress: Draw progress bars with what is being done and the remaining time; None for bars in a terminal or a
            notebook alone.

    Returns:
        The report, with one row per image, method, metric and number.
    """
    if isinstance(target, bool) or not isinstance(target, (str, Integral)):
        raise ArgumentError(f"Expected target 'predicted', 'label', or a class by number or name, but got {target!r}.")
    is_count = isinstance(pictures, int) and not isinstance(pictures, bool) and pictures >= 0
    check_that(is_count, "pictures to be a whole number from 0 on", repr(pictures))
    check_that(not pictures or out is not None, f"a folder for {pictures} pictures as out=", "none")
    seed = check_seed("seed", seed)
    losses: dict[int, str] = {}
    batches = in_samples(data, batch_size, limit, losses)
    options: Any = {"target": target, "class_names": class_names, "task": task, "outputs": outputs, "seed": seed}
    options |= {"preprocess": preprocess, "window": window, "tokenizer": tokenizer, "inner_batch": inner_batch}
    run = Run(model, batches, losses, evaluator=evaluator, relabelled=relabelled, **options)
    folder = None if out is None else Path(out)
    run.keep(folder, None if cache is None else Path(cache), curves, pictures)
    metric_list = _metrics(run, metrics)
    methods = [methods] if isinstance(methods, str) else list(methods)
    method_list = method_runs(methods, find_anatomy(run.model, run.prepared.batch), controls)
    needs = [(name, f"Metric {metric.label!r}") for metric in metric_list for name in metric.needs]
    needs += [("label", "target='label'")] * (run.target == "label")
    run.needs, start = frozenset(name for name, _ in needs), [run.first]
    for name, reason in needs:  # batches are read until it is sure that the data has what is needed
        look_for(name, reason, start, batches)
    call = {
        "model": run.name,
        "methods": [method.label for method in method_list],
        "metrics": [metric.label for metric in metric_list],
        "batch_size": batch_size,
    }
    refused: dict[str, str] | None = {} if EVERY in methods else None
    watched, steps = is_watched(progress), count_batches(data, batch_size, limit)
    size = count_samples(data, run.first.items, limit)
    if folder is not None:
        write_call(folder, call, samples=size)
    with progress_bar(None if steps is None else steps * len(method_list), watched, "reading") as bar:
        for samples in chain(start, batches):
            span = f"samples {samples.ids[0] + 1} to {samples.ids[-1] + 1}" + ("" if size is None else f" of {size}")
            sound = (samples, run.prepared) if samples is run.first else run.prepare(samples)
            if sound is None:
                bar.advance(len(method_list))
                continue
            judge_batch(
                run,
                sound[0].numbered(run.numbers),
                sound[1],
                _followed(method_list, bar),
                metric_list,
                refused=refused,
                progress=watched,
                say=lambda text, span=span: bar.say(f"{span}, {text}"),  # type: ignore[misc]
            )
    if refused:
        listed = " ".join(f"{name}: {reason}" for name, reason in refused.items())
        warn(f"Methods that refuse this model or these inputs are left out. {listed}")
        check_that(len(refused) < sum(not method.control for method in method_list), "a method that can", "none")
    rows = run.parts.table()
    losses.update(dict.fromkeys(unjudged_in(rows), NOT_FINITE))  # also by an earlier call in the same folder
    count = max((samples.ids[-1], *losses)) + 1
    if folder is not None:
        write_call(folder, call, samples=size, done=count, lost=losses, cost=run.cost)
    _warn(run, count)
    return Report(rows, run.curves.table(), losses, cost=run.cost)


def _metrics(run: Run, metrics: Any) -> list[MetricRun]:
    """Metrics to judge by, refused where the model or the data do not allow them."""
    runs = metric_runs(metrics, run.prepared.batch.modality, run.seed)
    if any("rationale" in metric.needs for metric in runs):
        check_words(run.prepared)
    for metric in runs:
        known = run.relabelled is not None or getattr(metric.metric.protocol, "mode", None) != "labels"
        check_that(known, f"a model that was trained on permuted labels as relabelled= for {metric.label!r}", "none")
    return runs


def _followed(methods: Iterable[MethodRun], bar: Bar) -> Iterator[MethodRun]:
    """Methods, with the bar moved on when one is done."""
    for method in methods:
        yield method
        bar.advance()


def _warn(run: Run, count: int) -> None:
    """Warn of samples, of so many, that do not count for a method, or for no method; refuse where all are lost."""
    for method, ids in run.skipped.items():
        warn(f"Method {method!r} gave maps that are not finite for {len(ids)} of {count} samples; they are skipped.")
    if run.lost:
        sentence = f"{len(run.lost)} of {count} samples could not be judged: {losses_in_words(run.lost)}."
        if len(run.lost) >= count:
            raise ArgumentError(sentence)
        warn(sentence)


def judge_batch(
    run: Run,
    samples: Samples,
    prepared: Prepared,
    methods: Iterable[MethodRun],
    metrics: list[MetricRun],
    *,
    refused: dict[str, str] | None = None,
    progress: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> None:
    """Make the rows of one batch; what is there already is left out, and so is all that only it would need.

    Samples for which the model gives NaN or infinity have rows of NaN, and are noted in `run.lost`. A method is taken
    when the one before it is done. Samples and inputs are as `Run.prepare` gives them. Methods in `refused` are passed
    over, and those that cannot explain the model or these samples are noted there with the reason, and lose their rows
    of earlier batches; without it, the error is raised.
    `say` is called with what is at work.
    """
    for name in run.needs.intersection(ALL):
        samples.check(name)
    batch = SampleBatch(run, samples, prepared, progress)
    for method in methods:
        if refused is not None and method.label in refused:
            continue
        groups = [RowGroup(batch.keys, method, metric, run.keep_curves) for metric in metrics]
        missing = [
            group.metric
            for group in groups  # both note what is asked for
            if any([run.parts.lacks(group.samples), run.curves.lacks(curve_rows_of(group))])
        ]
        if not missing and not run.saved_maps.lacks(batch.keys, method):
            continue
        unsound = [key for key, finite in zip(batch.keys, batch.finite, strict=True) if not finite]
        run.lost.update(dict.fromkeys((number for number, _ in unsound), NOT_FINITE))
        groups = [RowGroup(unsound, method, metric, run.keep_curves) for metric in missing]
        run.parts.add(chain.from_iterable(map(rows_of, groups)))
        run.curves.add(chain.from_iterable(map(curve_rows_of, groups)))
        if batch.sound is not None:
            say(f"{method.label}: maps")
            try:
                _judge(batch.sound, method, missing, say)
            except CANNOT as error:
                if refused is None:
                    raise
                refused[method.label] = error.reason if isinstance(error, UnsupportedModelError) else str(error)
                run.drop(method)


def _judge(batch: SampleBatch, method: MethodRun, metrics: list[MetricRun], say: Callable[[str], None]) -> None:
    """Make the rows of samples whose outputs are finite, by one method."""
    run = batch.run
    _ = batch.subject.logits, batch.masks, batch.classes  # what all methods share is part of nobody's time
    before = batch.subject.passes, batch.subject.saved
    started = time.perf_counter()
    gaps = Gaps(batch.samples.ids)
    case = case_of(batch, method, gaps)
    seconds = (time.perf_counter() - started) / len(batch.samples.ids)
    case.plan([metric.metric.sweep for metric in metrics if isinstance(metric.metric, CurveMetric)])
    if run.saved_maps.lacks(batch.keys, method):
        run.saved_maps.add(case, batch.keys, method)
    rows: list[dict[str, Any]] = []
    curves: list[dict[str, Any]] = []
    for metric in metrics:
        say(f"{method.label}: {metric.label}")
        group = RowGroup(batch.keys, method, metric, run.keep_curves)
        curves += curve_rows_of(group, case, gaps)
        rows += rows_of(group, case, gaps, seconds)
    run.curves.add(curves)
    run.parts.add(rows)
    run.cost["passes"] += batch.subject.passes - before[0]
    run.cost["saved"] += batch.subject.saved - before[1]
    if gaps.lost:
        run.skipped.setdefault(method.label, set()).update(gaps.lost)
