"""Judging methods on a model and its data: every method, every metric, every image, and rows of numbers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from mhex._progress import track
from mhex.bench.cache import Cache
from mhex.bench.cases import Run, case_of, digests
from mhex.bench.plan import Judge, Judged, MethodGiven, MetricGiven, fingerprint, judged, judges
from mhex.bench.report import Report
from mhex.bench.samples import Samples, count_samples, in_samples
from mhex.bench.store import Parts
from mhex.bundle import Bundle, as_bundle
from mhex.capture import find_anatomy, unwrap
from mhex.errors import ArgumentError
from mhex.inputs import prepare
from mhex.metrics._curve import CurveMetric
from mhex.metrics.case import Case
from mhex.perturb import Subject


def evaluate(
    model: nn.Module | Bundle,
    data: Any,
    methods: str | Iterable[MethodGiven] = "all",
    metrics: str | Sequence[MetricGiven] = ("deletion", "insertion"),
    *,
    target: str | int = "predicted",
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
    progress: bool = False,
) -> Report:
    """Explain every image by every method, and judge the maps by every metric.

    Passes are shared: the clean pass by everything, a sweep by all metrics that can read it, boxes and noise by all
    methods. Images, ties, boxes and seeds are the same for all methods, so that they can be compared in pairs.

    Args:
        model: A classifier that returns logits, or a bundle from `mhex.load`.
        data: A loader of batches, a data set, a list, a tensor or a dictionary. Items are inputs alone,
            `(inputs, label)`, `(inputs, label, mask)`, or dictionaries with `label`, `mask`, `rationale`, `other`.
        methods: Names, or pairs of a name and its options; `"all"` for every method that serves the model.
        metrics: Names, `"name:preset"`, pairs of a name and parts of its protocol, or torchmetrics objects.
        target: The class that is explained: the `"predicted"` one, the `"label"`, or a number.
        controls: Judge random, centred and edge maps too, which no method should be worse than.
        limit: The most images.
        batch_size: Images that are explained at once.
        inner_batch: The most samples in one pass of a sweep; None for what is good for the device.
        task: `"multi-label"` if each class has a sigmoid of its own; by default what the model's configuration says.
        evaluator: Another model whose outputs are read; by default the explained one.
        relabelled: A model of the same kind trained on permuted labels, for `randomization` with `mode="labels"`.
        preprocess: As for `mhex.explain`.
        tokenizer: As for `mhex.explain`.
        seed: Of methods, ties, boxes and noise.
        out: Folder for rows; a run that was broken off goes on from what is there. Rows are known by image, method and
            protocol; a folder of another model, target or seed is refused.
        cache: Folder for maps, to be judged again later.
        progress: Draw progress bars with the time that is left.

    Returns:
        The report, with one row per image, method, metric and number.
    """
    bundle = as_bundle(model)
    inner = unwrap(bundle.model)
    if target not in ("predicted", "label") and (isinstance(target, bool) or not isinstance(target, int)):
        raise ArgumentError(f"Expected target 'predicted', 'label' or a class number, but got {target!r}.")
    run = Run(
        inner,
        inner if evaluator is None else unwrap(evaluator),
        None if relabelled is None else unwrap(relabelled),
        preprocess or bundle.preprocess,
        tokenizer or bundle.tokenizer,
        target,
        seed,
        inner_batch,
        None if cache is None else Cache(Path(cache), fingerprint(inner)),
        Parts(None if out is None else Path(out), _told(inner, evaluator, relabelled, target, seed)),
        task == "multi-label" or _is_multi_label(inner),
    )
    plan: tuple[list[Judged], list[Judge]] | None = None
    batches = in_samples(data, batch_size, limit)
    total = count_samples(data, limit)
    steps = None if total is None or not batch_size else range(-(-total // batch_size))
    for samples in _tracked(batches, steps, progress):
        if plan is None:
            plan = _plan(run, samples, methods, metrics, controls)
        _judge_batch(run, samples, *plan, progress=progress)
    assert plan is not None  # empty data is refused
    return Report(run.parts.table())


def _tracked(batches: Iterable[Samples], steps: Any, progress: bool) -> Iterable[Samples]:
    if steps is None:
        yield from track(batches, "batches", progress)
        return
    iterator = iter(batches)
    for _ in track(steps, "batches", progress):
        found = next(iterator, None)
        if found is None:
            return
        yield found
    yield from iterator


def _plan(run: Run, samples: Samples, methods: Any, metrics: Any, controls: bool) -> tuple[list[Judged], list[Judge]]:
    """Everything that can be refused is refused before the first map."""
    prepared = prepare(run.model, samples.inputs, run.preprocess, run.tokenizer)
    anatomy = find_anatomy(run.model, prepared.batch)
    chosen = judges(metrics, anatomy.modality, run.seed)
    for one in chosen:
        for name in ("label", "mask", "rationale", "tiles"):
            if name in one.spec.data and getattr(samples, name) is None:
                raise ArgumentError(f"Metric {one.spec.name!r} needs a {name} for each sample, but the data has none.")
        if "two classes" in one.spec.data and samples.other is None:
            raise ArgumentError(
                f"Metric {one.spec.name!r} needs another class in each image, but the data has none; give items with "
                "'other'."
            )
    if run.target == "label" and samples.label is None:
        raise ArgumentError("Expected labels in the data for target='label', but there are none.")
    return judged(methods, anatomy, controls), chosen


def _judge_batch(run: Run, samples: Samples, methods: list[Judged], metrics: list[Judge], progress: bool) -> None:
    """Rows of one batch; what is there already is left out, and so is all that only it would need."""
    subject = Subject(
        run.evaluator,
        samples.inputs,
        samples.label,
        samples.ids,
        preprocess=run.preprocess,
        tokenizer=run.tokenizer,
        multi_label=run.multi_label,
        batch_size=run.inner_batch,
        progress=progress,
    )
    marks = digests(samples, subject)
    for method in methods:
        wanted = [one for one in metrics if not _done(run, samples, marks, method, one)]
        if not wanted:
            continue
        started = time.perf_counter()
        case = case_of(run, samples, marks, method, subject)
        seconds = (time.perf_counter() - started) / len(samples.ids)
        case.plan([one.metric.sweep for one in wanted if isinstance(one.metric, CurveMetric)])
        run.parts.add([row for one in wanted for row in _rows(case, marks, method, one, seconds)])


def _done(run: Run, samples: Samples, marks: tuple[str, ...], method: Judged, metric: Judge) -> bool:
    """Whether all rows are there already; all of them are noted as asked for."""
    rest = (method.name, method.written, metric.label, str(metric.metric.protocol))
    keys = {(i, mark, *rest) for i, mark in zip(samples.ids, marks, strict=True)}
    run.parts.asked |= keys
    return keys <= run.parts.done


def _told(model: nn.Module, evaluator: Any, relabelled: Any, target: Any, seed: int) -> str:
    """What makes rows comparable beside what stands in them."""
    models = {"model": model, "evaluator": evaluator, "relabelled": relabelled}
    told = {name: fingerprint(None if one is None else unwrap(one)) for name, one in models.items()}
    return json.dumps({**told, "target": str(target), "seed": seed})


def _is_multi_label(model: nn.Module) -> bool:
    return getattr(getattr(model, "config", None), "problem_type", None) == "multi_label_classification"


def _rows(
    case: Case, marks: tuple[str, ...], method: Judged, metric: Judge, explain_seconds: float
) -> Iterable[dict[str, Any]]:
    started = time.perf_counter()
    numbers = metric.metric.score(*metric.metric.of(case)).double()
    numbers = numbers[:, None] if numbers.dim() == 1 else numbers
    seconds = (time.perf_counter() - started) / len(case.ids)
    for image, mark, values in zip(case.ids, marks, numbers.tolist(), strict=True):
        for column, value in zip(metric.metric.columns, values, strict=True):
            yield {
                "image": image,
                "input": mark,
                "method": method.name,
                "options": method.written,
                "metric": metric.label,
                "settings": metric.settings,
                "protocol": str(metric.metric.protocol),
                "column": column,
                "value": value,
                "seconds": seconds,
                "explain_seconds": explain_seconds,
            }
