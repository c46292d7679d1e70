"""What is to be judged by what: methods with options, metrics with protocols, and the names of both in a report."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from mhex.capture import Anatomy, Outputs, has_sigmoids
from mhex.errors import ArgumentError, ArgumentTypeError, MhexError, unknown_name
from mhex.heads import heads_of
from mhex.judge.controls import CONTROLS, PREFIX, is_control
from mhex.methods import all_methods, get_method
from mhex.metrics._base import PerImage
from mhex.metrics.registry import MetricSpec, get_metric
from mhex.perturb import Subject
from mhex.stats.comparison import Paired
from mhex.targets import Task, names_of, resolve_target, usual_task


class ClassNumbers:
    """Numbers of classes that are given by name or number.

    Args:
        model: Whose configuration may have names.
        names: In the order of the outputs, or by number; None for those of the model.
        logits: Outputs of the model for some samples, (B, C), which say how many classes there are; asked for once, and
            only if a class is given.
    """

    def __init__(
        self,
        model: nn.Module,
        names: Sequence[str] | Mapping[int, str] | None,
        logits: Callable[[], Tensor],
    ) -> None:
        self._model, self._given, self._ask = model, names, logits

    @cached_property
    def _known(self) -> tuple[Tensor, list[str] | None]:
        logits = self._ask()
        return logits, names_of(self._model, self._given, logits, "classification")

    @property
    def names(self) -> list[str] | None:
        """Names of all classes, in their order; None if they are not known."""
        return self._known[1]

    def __call__(self, given: Sequence[int | str]) -> Tensor:
        """Their numbers, (n,); a name that the model does not know is refused, with those that are near it."""
        logits, names = self._known
        found = resolve_target(list(given), logits, names).index
        assert found is not None  # classes alone were given
        return found[0]


_TASKS = ("classification", "multi-label")


def judged_task(subject: Subject, given: Any) -> Task:
    """The task by which maps are made and outputs are read.

    Args:
        subject: Whose model says it by its configuration, its heads or its end, where the user does not.
        given: By the user; None if not at all.
    """
    if given is None:
        heads = heads_of(subject.model)
        several = heads is not None and heads.settings.multi_label
        found = usual_task(subject.model, several)
        if found == "classification" and has_sigmoids(subject.ending, subject.raw_logits):
            return "multi-label"
        if found == "regression":
            raise ArgumentError(
                "Expected a classifier, but the model's configuration says 'regression', and metrics judge classes; "
                "give task='classification' or 'multi-label' if its outputs are scores of classes."
            )
        return found
    if given not in _TASKS:
        why = ", because metrics judge classes" if given == "regression" else ""
        raise ArgumentError(f"Expected task {' or '.join(map(repr, _TASKS))}{why}, but got {given!r}.")
    sort: Task = given
    return sort


def outputs_of(subject: Subject) -> Outputs:
    """What a model returns, as the user said or as it was recognised, so that all batches are read alike."""
    return "logits" if subject.ending is None else "probabilities"


class Pairs(dict[tuple[str, str], Paired]):
    """Comparisons by the names of two methods; asked for in the other order, a pair is turned round."""

    def __missing__(self, pair: tuple[str, str]) -> Paired:
        names = dict.fromkeys(name for known in self for name in known)
        if not isinstance(pair, tuple) or len(pair) != 2 or pair[0] == pair[1]:
            raise ArgumentError(f"Expected the names of two methods, but got {pair!r}.")
        check_names("method", pair, names)
        return self[pair[1], pair[0]].reversed


def check_names(kind: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Refuse names that are not known, and those that come twice."""
    names, known = list(names), list(known)
    for name in names:
        if name not in known:
            raise unknown_name(kind, name, known)
        if names.count(name) > 1:
            raise ArgumentError(f"Expected each {kind} once, but got {name!r} twice.")


MethodGiven = str | tuple[str, Mapping[str, Any]]
MetricGiven = str | tuple[str, Mapping[str, Any]] | PerImage


@dataclass(frozen=True)
class Judged:
    """A method, or a control map, with its options.

    Attributes:
        name: Of the method; of a control, `"control:NAME"`.
        options: As given, without defaults.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def control(self) -> str:
        """Name of the control map; empty for a method."""
        return self.name.removeprefix(PREFIX) if is_control(self.name) else ""

    @property
    def written(self) -> str:
        """Options as they stand in the rows of a report."""
        return json.dumps(dict(self.options), sort_keys=True, default=str)

    @property
    def label(self) -> str:
        """What it is called in tables."""
        return label(self.name, self.written)


@dataclass(frozen=True)
class Judge:
    """A metric with its protocol.

    Attributes:
        spec: The metric.
        preset: Name of its protocol.
        metric: An empty torchmetrics object with it.
        changes: Parts of the protocol that differ from the preset.
    """

    spec: MetricSpec
    preset: str
    metric: PerImage
    changes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """What it is called in reports."""
        name = self.spec.name if self.preset == "default" else f"{self.spec.name}:{self.preset}"
        return label(name, json.dumps(dict(self.changes)))

    @property
    def needs(self) -> tuple[str, ...]:
        """What it needs of the data beside inputs, by the names of `Samples`."""
        found = ["other" if name == "two classes" else name for name in self.spec.data]
        if any(getattr(self.metric.protocol, part, None) == "label" for part in ("scored", "hit")):
            found.append("label")
        return tuple(dict.fromkeys(found))

    @property
    def settings(self) -> str:
        """All that is needed to make the metric again."""
        return json.dumps({"name": self.spec.name, "preset": self.preset, "changes": dict(self.changes)})


def metric_of(settings: str) -> PerImage:
    """An empty torchmetrics object, from what `Judge.settings` wrote."""
    told = json.loads(settings)
    try:
        changes: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in told["changes"].items()}
        return get_metric(told["name"]).metric(told["preset"], **changes)
    except MhexError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ArgumentError(
            f"Expected the name, the preset and the changes of a metric in a report, but got {settings}: "
            f"{type(error).__name__} {str(error).rstrip('.')}."
        ) from error


def label(name: str, written: str) -> str:
    """What a method with options is called in tables."""
    options = json.loads(written)
    return name if not options else f"{name} ({', '.join(f'{k}={v}' for k, v in options.items())})"


def judged(methods: str | Iterable[MethodGiven], anatomy: Anatomy, controls: bool) -> list[Judged]:
    """Methods to be judged, checked against the model.

    Args:
        methods: Names, or pairs of a name and options; `"all"` for every method that serves the model.
        anatomy: Of the model.
        controls: Whether control maps are judged beside them.
    """
    if methods == "all":
        found = [Judged(m.name) for m in all_methods().values() if not m.refusal(anatomy)]
    else:
        given = [methods] if isinstance(methods, str) else list(methods)
        found = [_judged(one, anatomy) for one in given]
    if not found:
        raise ArgumentError("Expected at least one method, but got none.")
    names = CONTROLS if anatomy.modality == "image" else ("random",)
    found += [Judged(f"{PREFIX}{name}") for name in names if controls]
    twice = [one.label for k, one in enumerate(found) if one.label in [other.label for other in found[:k]]]
    if twice:
        raise ArgumentError(f"Expected each method once, but got {twice[0]} twice.")
    return found


def _judged(given: MethodGiven, anatomy: Anatomy) -> Judged:
    name, options = (given, {}) if isinstance(given, str) else given
    if not isinstance(name, str):
        raise ArgumentTypeError(f"Expected a method's name, or a name and its options, but got {given!r}.")
    if is_control(name):
        if name.removeprefix(PREFIX) not in CONTROLS:
            raise ArgumentError(f"Expected a control map among {', '.join(CONTROLS)}, but got {name!r}.")
        return Judged(name)
    method = get_method(name)
    settings = method.check_options(options)
    method.check_serves(anatomy, needs=method.needs_with(settings, anatomy))
    return Judged(name, dict(options))


def judges(metrics: str | Sequence[MetricGiven], modality: str, seed: int = 0) -> list[Judge]:
    """Metrics to judge by, checked against the model.

    Args:
        metrics: Names (`"deletion"`, or `"deletion:rise"` for a preset), pairs of a name and parts of the protocol that
            differ, or torchmetrics objects.
        modality: Of the model; for texts the preset `"text"` is the usual one where a metric has it.
        seed: Of ties, boxes and noise, where a protocol does not say otherwise.
    """
    given = [metrics] if isinstance(metrics, (str, PerImage)) else list(metrics)
    if not given:
        raise ArgumentError("Expected at least one metric, but got none.")
    found = [_judge(one, modality, seed) for one in given]
    labels = [one.label for one in found]
    if len(set(labels)) < len(labels):
        raise ArgumentError(f"Expected each metric once, but got {max(labels, key=labels.count)} twice.")
    for one in found:
        if modality not in one.spec.modalities:
            raise ArgumentError(f"Metric {one.spec.name!r} is not defined for {modality} models.")
    return found


def _judge(given: MetricGiven, modality: str, seed: int) -> Judge:
    if isinstance(given, PerImage):
        from mhex.metrics.registry import all_metrics

        spec = next((one for one in all_metrics().values() if one.metric is type(given)), None)
        if spec is None:
            raise ArgumentTypeError(f"Expected a registered metric, but got {type(given).__name__}.")
        usual_parts, parts = (vars(one) for one in (given.presets[given.preset], given.protocol))
        return Judge(spec, given.preset, given, {k: v for k, v in parts.items() if v != usual_parts[k]})
    name, changes = (given, {}) if isinstance(given, str) else given
    if not isinstance(name, str):
        raise ArgumentTypeError(f"Expected a metric's name, or a name and parts of its protocol, but got {given!r}.")
    name, _, preset = name.partition(":")
    spec = get_metric(name)
    usual = "text" if modality == "text" and "text" in spec.presets else "default"
    preset = preset or usual
    if seed and preset in spec.presets and hasattr(spec.presets[preset], "seed"):
        changes = {"seed": seed, **changes}
    return Judge(spec, preset, spec.metric(preset, **changes), dict(changes))


def fingerprint(model: nn.Module | None) -> str:
    """A short name for the weights and buffers of a model, so that results of another one are not taken for its own."""
    if model is None:
        return "none"
    mixed = hashlib.sha256()
    for name, value in model.state_dict().items():
        mixed.update(name.encode())
        if isinstance(value, Tensor):
            mixed.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return f"{type(model).__name__}-{mixed.hexdigest()[:16]}"
