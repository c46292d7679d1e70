"""What is judged by what: methods with options, metrics with protocols, and the names of both in a report."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from mhex._settings import check_that
from mhex.capture import Anatomy, Outputs, has_sigmoids
from mhex.errors import ArgumentError, ArgumentTypeError, MhexError, unknown_name
from mhex.heads import heads_of
from mhex.judge.controls import CONTROLS, PREFIX, controls_of, is_control
from mhex.methods import all_methods, get_method
from mhex.metrics.base import PerImage
from mhex.metrics.registry import MetricSpec, all_metrics, get_metric
from mhex.perturb import Subject
from mhex.targets import Task, usual_task

MethodGiven = str | tuple[str, Mapping[str, Any]]
MetricGiven = str | tuple[str, Mapping[str, Any]] | PerImage
EVERY = "all"  # in place of a method: every one that serves the model
_TASKS: tuple[Task, ...] = ("classification", "multi-label")


@lru_cache(maxsize=1024)  # rows repeat the same ones
def label(name: str, options: str) -> str:
    """What a method with options (in JSON) is called in tables."""
    parts = [f"{key}={value}" for key, value in json.loads(options).items()]
    return f"{name} ({', '.join(parts)})" if parts else name


@dataclass(frozen=True)
class MethodRun:
    """A method, or a control map, with its options."""

    name: str  # name of the method; a control map is called `"control:NAME"`
    options: Mapping[str, Any] = field(default_factory=dict)  # options as the user wrote them, without defaults

    @property
    def control(self) -> str:
        """Name of the control map; empty for a method."""
        return self.name.removeprefix(PREFIX) if is_control(self.name) else ""

    @property
    def options_json(self) -> str:
        """The options as they stand in the rows of a report."""
        return json.dumps(dict(self.options), sort_keys=True, default=str)

    @property
    def label(self) -> str:
        """What it is called in tables."""
        return label(self.name, self.options_json)


@dataclass(frozen=True)
class MetricRun:
    """A metric with its protocol."""

    spec: MetricSpec  # the metric
    preset: str  # name of its protocol
    metric: PerImage  # an empty torchmetrics object with the protocol
    changes: Mapping[str, Any] = field(default_factory=dict)  # parts of the protocol that differ from the preset

    @property
    def label(self) -> str:
        """What it is called in reports."""
        name = self.spec.name if self.preset == "default" else f"{self.spec.name}:{self.preset}"
        return label(name, json.dumps(dict(self.changes)))

    @property
    def needs(self) -> tuple[str, ...]:
        """What it needs of the data beside inputs, by the names of `Samples`."""
        names = ["other" if name == "two classes" else name for name in self.spec.data]
        if any(getattr(self.metric.protocol, part, None) == "label" for part in ("scored", "hit")):
            names.append("label")
        return tuple(dict.fromkeys(names))

    @property
    def settings(self) -> str:
        """Everything that `metric_from` needs to build the metric again, in JSON."""
        return json.dumps({"name": self.spec.name, "preset": self.preset, "changes": dict(self.changes)})


def metric_from(settings: str) -> PerImage:
    """An empty torchmetrics object, from what `MetricRun.settings` wrote."""
    entry = json.loads(settings)
    try:
        changes: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in entry["changes"].items()}
        return get_metric(entry["name"]).metric(entry["preset"], **changes)
    except MhexError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ArgumentError(f"Expected name, preset and changes of a metric, but got {settings}: {error!r}.") from error


def check_names(kind: str, names: str | Iterable[str] | None, choices: Iterable[str]) -> list[str]:
    """Names in a list, of one string or all choices for None; those that are no choice or come twice are refused."""
    choices = list(choices)
    names = choices if names is None else [names] if isinstance(names, str) else list(names)
    for name in names:
        if name not in choices:
            raise unknown_name(kind, name, choices)
    _check_once(kind, names)
    return names


def _check_once(kind: str, names: list[str]) -> None:
    twice = next((name for name in names if names.count(name) > 1), None)
    check_that(twice is None, f"each {kind} once", f"{twice} twice")


def method_runs(methods: str | Iterable[MethodGiven], anatomy: Anatomy, controls: bool) -> list[MethodRun]:
    """Methods to be judged, as `mhex.evaluate` takes them, and control maps if asked for, checked by the model."""
    runs: list[MethodRun] = []
    for entry in [methods] if isinstance(methods, str) else methods:
        if entry == EVERY:
            runs += [MethodRun(spec.name) for spec in all_methods().values() if not spec.refusal(anatomy)]
        else:
            runs.append(_method_run(entry, anatomy))
    check_that(bool(runs), "at least one method", "none")
    runs += [MethodRun(f"{PREFIX}{name}") for name in controls_of(anatomy.modality) if controls]
    _check_once("method", [run.label for run in runs])
    return runs


def _method_run(entry: MethodGiven, anatomy: Anatomy) -> MethodRun:
    name, options = (entry, {}) if isinstance(entry, str) else entry
    if not isinstance(name, str):
        raise ArgumentTypeError(f"Expected a method's name, or a name and its options, but got {entry!r}.")
    if is_control(name):
        known = name.removeprefix(PREFIX) in CONTROLS
        check_that(known, f"a control map among {', '.join(CONTROLS)}", repr(name))
        return MethodRun(name)
    method = get_method(name)
    settings = method.check_options(options)
    method.check_serves(anatomy, needs=method.needs_with(settings, anatomy))
    return MethodRun(name, dict(options))


def metric_runs(metrics: str | PerImage | Iterable[MetricGiven], modality: str, seed: int = 0) -> list[MetricRun]:
    """Metrics to judge by, as `mhex.evaluate` takes them, checked against the model.

    For texts the preset `"text"` is the usual one where a metric has it. The seed of ties, boxes and noise counts where
    a protocol does not say otherwise.
    """
    entries = [metrics] if isinstance(metrics, (str, PerImage)) else list(metrics)
    check_that(bool(entries), "at least one metric", "none")
    runs = [_metric_run(entry, modality, seed) for entry in entries]
    _check_once("metric", [run.label for run in runs])
    for run in runs:
        if modality not in run.spec.modalities:
            raise ArgumentError(f"Metric {run.spec.name!r} is not defined for {modality} models.")
    return runs


def _metric_run(entry: MetricGiven, modality: str, seed: int) -> MetricRun:
    if isinstance(entry, PerImage):
        spec = next((spec for spec in all_metrics().values() if spec.metric is type(entry)), None)
        if spec is None:
            raise ArgumentTypeError(f"Expected a registered metric, but got {type(entry).__name__}.")
        usual_parts, parts = vars(entry.presets[entry.preset]), vars(entry.protocol)
        return MetricRun(spec, entry.preset, entry, {k: v for k, v in parts.items() if v != usual_parts[k]})
    name, changes = (entry, {}) if isinstance(entry, str) else entry
    if not isinstance(name, str):
        raise ArgumentTypeError(f"Expected a metric's name, or a name and parts of its protocol, but got {entry!r}.")
    name, _, preset = name.partition(":")
    spec = get_metric(name)
    preset = preset or ("text" if modality == "text" and "text" in spec.presets else "default")
    if seed and preset in spec.presets and hasattr(spec.presets[preset], "seed"):
        changes = {"seed": seed, **changes}
    metric = spec.metric(preset, **changes)
    return MetricRun(
        spec, preset, metric, {name: getattr(metric.protocol, name, value) for name, value in changes.items()}
    )


def task_of_subject(subject: Subject, task: Any) -> Task:
    """The task that the user names, or that the model says by its configuration, its heads or its end."""
    source = "got" if task is not None else "the model's configuration says"
    if task is None:
        heads = heads_of(subject.model)
        usual = usual_task(subject.model, heads is not None and heads.settings.multi_label)
        if usual == "classification" and has_sigmoids(subject.ending, subject.raw_logits):
            return "multi-label"
        task = usual
    if task not in _TASKS:
        tasks = " or ".join(map(repr, _TASKS))
        raise ArgumentError(f"Expected task {tasks}, because metrics judge classes, but {source} {task!r}.")
    return _TASKS[_TASKS.index(task)]


def outputs_of(subject: Subject) -> Outputs:
    """What a model returns, as the user said or as it was recognised, so that all batches are read alike."""
    return "logits" if subject.ending is None else "probabilities"


def tensor_bytes(value: Tensor) -> bytes:
    """The bytes of a tensor, for digests."""
    return value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def fingerprint(model: nn.Module | None) -> str:
    """A short name for the weights and buffers of a model, by which results of different models are kept apart."""
    if model is None:
        return "none"
    digest = hashlib.sha256()
    for name, value in model.state_dict().items():
        digest.update(name.encode())
        if isinstance(value, Tensor):
            digest.update(tensor_bytes(value))
    return f"{type(model).__name__}-{digest.hexdigest()[:16]}"
