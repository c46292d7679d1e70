"""What is wrong with a suite, found without weights and without data: the file, the key, and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Real
from typing import NamedTuple

from mhex.errors import ArgumentError, MhexError, unknown_name
from mhex.inputs.photos import check_window
from mhex.judge.controls import CONTROLS, PREFIX, is_control
from mhex.judge.plan import Judge, judges
from mhex.lab.config.suite import EVERY, DataPart, Entry, MethodPart, MetricPart, ModelPart, Suite, method_label
from mhex.lab.datasets import DataEntry, data_entry
from mhex.methods import all_methods, get_method
from mhex.metrics._curve import CurveMetric
from mhex.metrics.registry import get_metric

_LABELLED = ("classes", "ordered classes")
_OTHER_NETWORK = "mhex"  # the preset whose paper reads another network than the explained one


def check_suite(suite: Suite, source: str) -> None:
    """Refuse a suite that cannot be run.

    Args:
        suite: As it was read.
        source: Name of the file, for messages.

    Raises:
        ArgumentError: One sentence that names the file and the key.
    """
    entries = suite.entries()
    _check_labels(entries, source)
    for quick in (False, True):
        with _at(source, "quick.models" if quick else "models"):
            _known("model", suite.quick.models if quick else (), [one.label for one in entries])
    left_out = {"leave_out": suite.leave_out, "quick.leave_out": suite.quick.leave_out}
    for place, model in enumerate(suite.models):
        if isinstance(model, ModelPart):
            left_out[f"models[{place}].leave_out"] = model.leave_out or ()
    for key, names in left_out.items():
        with _at(source, key):
            _known("method", names, all_methods())
    found: dict[str, _Table] = {}
    for quick in (False, True):
        for entry in suite.entries(quick):
            made = _check_entry(entry, source, _keys(suite, entry, quick))
            found.setdefault(entry.label, made)
    if suite.charts and not any(_has_curves(part) for entry in entries for part in entry.metrics):
        raise ArgumentError(f"{source}: charts: they draw curves, and no metric of the suite has any; leave it out.")
    for place, published in enumerate(suite.published):
        with _at(source, f"published[{place}]"):
            _known("model", published.models, found)
            scope = [found[name] for name in published.models or found]
            methods, columns, _ = map(_joined, zip(*scope, strict=True))
            _check_values(published.values, methods, columns)
    for place, claim in enumerate(suite.claims):
        with _at(source, f"claims[{place}]"):
            _known("model", claim.models, found)
            scope = [found[name] for name in claim.models or found]
            methods, columns, neutral = map(_joined, zip(*scope, strict=True))
            _known("column", [claim.column], sorted(columns))
            if claim.column in neutral:
                raise ArgumentError(f"neither high nor low is better for {claim.column!r}, so nothing is better by it.")
            _known("method", (*claim.better, *claim.than), sorted(methods))


def _has_curves(part: MetricPart) -> bool:
    return issubclass(get_metric(part.name.partition(":")[0]).metric, CurveMetric)


def _keys(suite: Suite, entry: Entry, quick: bool) -> dict[str, str]:
    """Where in the file each part of an entry stands."""
    place = next(n for n, one in enumerate(suite.entries()) if one.label == entry.label)
    model = suite.models[place]
    own = model if isinstance(model, ModelPart) else ModelPart(model)
    found = {"model": f"models[{place}]"}
    for key in ("data", "methods", "metrics", "target", "evaluator"):
        faster = quick and getattr(suite.quick, key, None) is not None
        common = f"quick.{key}" if faster else key
        found[key] = common if getattr(own, key) is None else f"models[{place}].{key}"
    return found


def _check_labels(entries: Sequence[Entry], source: str) -> None:
    labels = [one.label for one in entries]
    for place, one in enumerate(entries):
        if not re.fullmatch(r"\w[\w.+-]*", one.label):
            raise ArgumentError(
                f"{source}: models[{place}].label: expected letters, digits, dots and dashes, since a folder is called "
                f"so, but got {one.label!r}."
            )
        if one.label.casefold() in [label.casefold() for label in labels[:place]]:
            raise ArgumentError(f"{source}: models[{place}]: {one.label!r} is there twice; give one of them a label.")


class _Table(NamedTuple):
    """What a table can have: names of methods and of columns, and of those of which neither side is better."""

    methods: set[str]
    columns: set[str]
    neutral: set[str]


def _joined(sets: Iterable[set[str]]) -> set[str]:
    return set().union(*sets)


def _check_entry(entry: Entry, source: str, keys: Mapping[str, str]) -> _Table:
    """What its table can have."""
    with _at(source, keys["model"]):
        _check_model(entry.model)
    with _at(source, keys["data"]):
        data = _check_data(entry.data)
    by = _check_metrics(entry.metrics, data, source, keys["metrics"])
    for place, one in enumerate(by):
        with _at(source, f"{keys['metrics']}[{place}]"):
            _check_needs(one, entry, data)
    with _at(source, keys["target"]):
        if entry.target == "label" and not _has("label", entry.data, data):
            raise ArgumentError(f"target 'label' needs a class of each sample, and {entry.data.name} has none.")
    with _at(source, keys["evaluator"]):
        if entry.evaluator is not None:
            _check_model(entry.evaluator)
        if entry.evaluator == entry.model:
            raise ArgumentError(f"expected another network than {entry.model}; leave it out to read the model itself.")
    names = _check_methods(entry.methods, data, source, keys["methods"])
    columns = {
        one.label if output == "value" else f"{one.label} {output}": better
        for one in by
        for output, better in zip(one.metric.outputs, one.metric.better, strict=True)
    }
    return _Table(names, set(columns), {column for column, better in columns.items() if better is None})


def _check_model(name: str) -> None:
    from mhex.lab.config.recipe_files import packaged_recipes
    from mhex.zoo.names import FORMS
    from mhex.zoo.residents import list_models

    kind, _, rest = name.partition(":")
    if kind not in ("zoo", "timm", "hf", "run") or not rest:
        raise ArgumentError(f"expected a model as {FORMS}, but got {name!r}.")
    if kind == "zoo":
        known = {row["name"].removeprefix("zoo:") for row in list_models()} | set(packaged_recipes())
        _known("zoo model", [rest], sorted(known))


def _check_data(part: DataPart) -> DataEntry:
    data = data_entry(part.name)
    if part.form != "single" and (data.kind != "image" or data.task not in _LABELLED):
        raise ArgumentError(f"form {part.form!r} needs photos with a class each, and {part.name} has none.")
    if part.window is not None and (data.kind != "image" or not part.name.startswith(("folder:", "csv:"))):
        raise ArgumentError(f"window is for photos of one's own (folder:PATH or csv:PATH), not for {part.name}.")
    check_window(part.window)
    return data


def _check_methods(methods: Sequence[MethodPart], data: DataEntry, source: str, key: str) -> set[str]:
    """Names in tables; with `all`, of every method for such data."""
    fitting = {name for name, one in all_methods().items() if data.kind in one.modalities}
    controls = {f"{PREFIX}{name}" for name, one in CONTROLS.items() if data.kind in one.modalities}
    names: list[str] = []
    for place, part in enumerate(methods):
        with _at(source, f"{key}[{place}]"):
            if part.name == EVERY:
                if part.options:
                    raise ArgumentError("'all' takes no options; name the methods that have them beside it.")
            elif is_control(part.name):
                _known("control map", [part.name], sorted(controls))
            else:
                get_method(part.name).check_options(part.options)
                if part.name not in fitting:
                    raise ArgumentError(f"method {part.name!r} is not defined for {data.kind}s.")
            names.append(method_label(part))
            if names[-1] in names[:-1]:
                raise ArgumentError(f"{names[-1]} is there twice.")
    return {*names, *controls, *(fitting if EVERY in names else ())}


def _check_metrics(metrics: Sequence[MetricPart], data: DataEntry, source: str, key: str) -> list[Judge]:
    """Metrics as they are called without the suite's seed, so that published columns need not name it."""
    found: list[Judge] = []
    for place, part in enumerate(metrics):
        with _at(source, f"{key}[{place}]"):
            one = judges([part.given], data.kind)[0]
            if one.label in [other.label for other in found]:
                raise ArgumentError(f"{one.label} is there twice.")
            found.append(one)
    return found


def _check_needs(metric: Judge, entry: Entry, data: DataEntry) -> None:
    """Refuse a metric of what the data does not say, and a paper's protocol without the other network it reads."""
    for need in metric.needs:
        if not _has(need, entry.data, data):
            form = "" if entry.data.form == "single" else f" as {entry.data.form} pictures"
            raise ArgumentError(f"{metric.label} needs {_WORDS[need]}, and {entry.data.name}{form} has none.")
    if metric.preset == _OTHER_NETWORK and entry.evaluator is None:
        raise ArgumentError(
            f"{metric.label} reads another network than the one that is explained; name it as evaluator, such as "
            "zoo:blood-resnet34."
        )


_WORDS = {
    "label": "a class of each sample",
    "mask": "masks",
    "rationale": "the words that people marked",
    "other": "pictures of two classes (data.form side-by-side or mosaic)",
    "tiles": "mosaics (data.form mosaic)",
}


def _has(need: str, part: DataPart, data: DataEntry) -> bool:
    """Whether the data can say something of its samples."""
    if need == "label":
        return data.task in _LABELLED or "two classes" in data.judged
    if need == "other":
        return part.form != "single" or "two classes" in data.judged
    if need == "tiles":
        return part.form == "mosaic"
    return part.form == "single" and {"mask": "masks", "rationale": "rationales"}[need] in data.judged


def _check_values(values: Mapping[str, object], methods: set[str], columns: set[str]) -> None:
    """Refuse published numbers that no table has a place for."""
    for method, numbers in values.items():
        _known("method", [method], sorted(methods))
        if not isinstance(numbers, Mapping):
            raise ArgumentError(f"values.{method} should be a mapping of columns to numbers, not {numbers!r}.")
        for column, value in numbers.items():
            _known("column", [str(column)], sorted(columns))
            if isinstance(value, bool) or not isinstance(value, Real):
                raise ArgumentError(f"values.{method}.{column} should be a number, not {value!r}.")


def _known(kind: str, names: Sequence[str], known: object) -> None:
    listed = list(known)  # type: ignore[call-overload]
    for name in names:
        if name not in listed:
            raise unknown_name(kind, name, listed)


@contextmanager
def _at(source: str, key: str) -> Iterator[None]:
    """Put the file and the key before what is wrong."""
    try:
        yield
    except MhexError as error:
        raise ArgumentError(f"{source}: {key}: {error}") from error
