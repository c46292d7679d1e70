"""What a suite file says, as frozen models, and whether it can be run. docs/bench.md describes every key."""

import re
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from pydantic import model_validator

from mhex._schema import build
from mhex.errors import ArgumentError, MhexError, unknown_name
from mhex.inputs.photos import check_window
from mhex.judge.controls import PREFIX, controls_of, is_control
from mhex.judge.plan import MethodGiven, MethodRun, MetricRun, label, metric_runs
from mhex.lab.config.recipe import packaged_recipes
from mhex.lab.config.schema import Count, FileSection, NamedFiles, Natural
from mhex.lab.datasets import DataEntry, data_entry
from mhex.methods import all_methods, get_method
from mhex.metrics.curve import CurveMetric
from mhex.metrics.registry import get_metric
from mhex.zoo import FORMS
from mhex.zoo.shipped import model_names

All = Literal["all"]
EVERY: All = "all"  # in the place of names: each method that serves the model
_Table = tuple[set[str], dict[str, Any]]  # what it can have: methods, and columns with the side that is better
SectionT = TypeVar("SectionT", bound=FileSection)


class PublishedPart(FileSection):
    """Numbers of a paper by method and column, both as they are called in our tables, shown beside ours."""

    paper: str
    table: str
    note: str
    values: Mapping[str, Mapping[str, float]]
    percent: bool = False
    models: tuple[str, ...] = ()


class ClaimPart(FileSection):
    """What is said of methods, to be tested on our rows: each of `better` should be better than each of `than`."""

    words: str
    column: str
    better: tuple[str, ...]
    than: tuple[str, ...]
    models: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        for key in ("better", "than"):
            if not getattr(self, key):
                raise ArgumentError(f"{key} should name a method.")
        if twice := [name for name in self.better if name in self.than]:
            raise ArgumentError(f"{twice[0]} should not be both better and worse.")
        if any(sign in self.words for sign in "|\n"):
            raise ArgumentError("words should be one line without '|', since they stand in a table.")
        return self


class SuiteData(FileSection):
    """What methods are judged on: single samples, or pictures of two classes that are made of photos."""

    name: str
    split: str | None = None
    limit: Count | None = None
    form: Literal["single", "side-by-side", "mosaic"] = "single"
    window: tuple[float, float] | None = None

    @property
    def options(self) -> dict[str, Any]:
        """Options for the loader."""
        return {} if self.window is None else {"window": self.window}


class SuiteMethod(FileSection):
    """A method, or a control map as `control:NAME`, with options."""

    name: str
    options: Mapping[str, Any] = {}

    @property
    def argument(self) -> MethodGiven:
        """The method as `mhex.evaluate` takes it."""
        return self.name, dict(self.options)

    @property
    def label(self) -> str:
        """The name of the method in tables."""
        return label(self.name, MethodRun(self.name, self.options).options_json)


class SuiteMetric(FileSection):
    """A metric, `NAME` or `NAME:PRESET`, with parts of its protocol that differ."""

    name: str
    changes: Mapping[str, Any] = {}

    @property
    def argument(self) -> tuple[str, Mapping[str, Any]]:
        """The metric as `mhex.evaluate` takes it."""
        return self.name, {key: tuple(part) if isinstance(part, list) else part for key, part in self.changes.items()}


Methods = All | tuple[str | SuiteMethod, ...]
Metrics = tuple[str | SuiteMetric, ...]


class SuiteModel(FileSection):
    """A model, and what differs for it from the rest of the suite."""

    name: str
    label: str | None = None
    data: SuiteData | None = None
    methods: Methods | None = None
    leave_out: tuple[str, ...] | None = None
    metrics: Metrics | None = None
    target: str | int | None = None
    evaluator: str | None = None


class SuiteQuick(FileSection):
    """What `--quick` changes, so that a suite can be tried in minutes."""

    limit: Count
    methods: Methods | None = None
    metrics: Metrics | None = None
    leave_out: tuple[str, ...] = ()
    models: tuple[str, ...] = ()


@dataclass(frozen=True)
class SuiteEntry:
    """One model of a suite with all that is asked of it; see `Suite` and `SuiteModel`."""

    label: str
    model: str
    data: SuiteData
    methods: tuple[SuiteMethod, ...]
    metrics: tuple[SuiteMetric, ...]
    leave_out: tuple[str, ...]
    target: str | int
    evaluator: str | None


class Suite(FileSection):
    """A benchmark: methods by metrics by models by data."""

    name: str
    title: str
    data: SuiteData
    models: tuple[str | SuiteModel, ...]
    metrics: Metrics
    quick: SuiteQuick
    methods: Methods = EVERY
    leave_out: tuple[str, ...] = ()
    target: str | int = "predicted"
    controls: bool = True
    evaluator: str | None = None
    batch_size: Count = 16
    seed: Natural = 0
    curves: bool = True
    pictures: Natural = 4
    charts: bool = False
    about: str = ""
    published: tuple[PublishedPart, ...] = ()
    claims: tuple[ClaimPart, ...] = ()
    reading: str = ""
    reading_of: str = ""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", self.name):
            raise ArgumentError(f"name should be small letters, digits and single dashes, not {self.name!r}.")
        for key in ("models", "metrics", "methods"):
            if not getattr(self, key):
                raise ArgumentError(f"{key} should not be empty.")
        if self.charts and not self.curves:
            raise ArgumentError("charts draw curves, so curves should be true beside charts.")
        return self

    def entries(self, quick: bool = False) -> list[SuiteEntry]:
        """Give the models with all that is asked of each, in the quick form or in the full one."""
        entries = [self._entry(_full(SuiteModel, model), quick) for model in self.models]
        labels = self.quick.models if quick else ()
        return [entry for entry in entries if not labels or entry.label in labels]

    def networks(self, quick: bool = False) -> list[str]:
        """Give the names of all models and evaluators, each once."""
        names = (name for entry in self.entries(quick) for name in (entry.model, entry.evaluator))
        return list(dict.fromkeys(name for name in names if name is not None))

    def _entry(self, model: SuiteModel, quick: bool) -> SuiteEntry:
        methods, metrics, data = self.methods, self.metrics, model.data or self.data
        leave_out = self.leave_out if model.leave_out is None else model.leave_out
        if quick:
            methods, metrics = self.quick.methods or methods, self.quick.metrics or metrics
            data, leave_out = data.model_copy(update={"limit": self.quick.limit}), (*leave_out, *self.quick.leave_out)
        methods, metrics = model.methods or methods, model.metrics or metrics
        return SuiteEntry(
            label=model.label or re.sub(r"[^\w.+-]+", "-", model.name.partition(":")[2] or model.name).strip("-."),
            model=model.name,
            data=data,
            methods=tuple(_full(SuiteMethod, method) for method in ((EVERY,) if methods == EVERY else methods)),
            metrics=tuple(_full(SuiteMetric, metric) for metric in metrics),
            leave_out=leave_out,
            target=self.target if model.target is None else model.target,
            evaluator=model.evaluator or self.evaluator,
        )


def _full(kind: type[SectionT], part: str | SectionT) -> SectionT:
    """Turn a bare name into the section that it stands for."""
    return kind.model_validate({"name": part}) if isinstance(part, str) else part


_SUITES = NamedFiles("suite", "mhex bench --list")
packaged_suites, find_suite = _SUITES.packaged, _SUITES.find


def read_suite(path: Path) -> Suite:
    """Read a suite file, and refuse what can be found to be wrong without weights and data, by file and key."""
    suite = build(Suite, _SUITES.read(path), path.name)
    check_suite(suite, path.name)
    return suite


def check_suite(suite: Suite, source: str) -> None:
    """Refuse a suite that cannot be run, in one sentence that names the file `source` and the key."""
    entries = suite.entries()
    _check_labels([entry.label for entry in entries], source)
    with at(source, "quick.models"):
        _check_known("model", suite.quick.models, [entry.label for entry in entries])
    left_out = {"leave_out": suite.leave_out, "quick.leave_out": suite.quick.leave_out}
    for place, model in enumerate(suite.models):
        left_out[f"models[{place}].leave_out"] = _full(SuiteModel, model).leave_out or ()
    for key, names in left_out.items():
        with at(source, key):
            _check_known("method", names, all_methods())
    tables: dict[str, _Table] = {}
    for quick in (False, True):
        for entry in suite.entries(quick):
            tables.setdefault(entry.label, _check_entry(entry, source, _keys(suite, entry, quick)))
    metrics = [get_metric(part.name.partition(":")[0]).metric for entry in entries for part in entry.metrics]
    if suite.charts and not any(issubclass(metric, CurveMetric) for metric in metrics):
        raise ArgumentError(f"{source}: charts: they draw curves, and no metric of the suite has any; leave it out.")
    for place, published in enumerate(suite.published):
        with at(source, f"published[{place}]"):
            methods, columns = _joined(tables, published.models)
            _check_known("method", published.values, sorted(methods))
            for numbers in published.values.values():
                _check_known("column", numbers, sorted(columns))
    for place, claim in enumerate(suite.claims):
        with at(source, f"claims[{place}]"):
            methods, columns = _joined(tables, claim.models)
            _check_known("column", [claim.column], sorted(columns))
            if columns[claim.column] is None:
                raise ArgumentError(f"neither high nor low is better for {claim.column!r}, so nothing is better by it.")
            _check_known("method", (*claim.better, *claim.than), sorted(methods))


def _joined(tables: Mapping[str, _Table], labels: Sequence[str]) -> _Table:
    """Join the tables of some models, or of all."""
    _check_known("model", labels, tables)
    members = [tables[name] for name in labels or tables]
    return set().union(*(methods for methods, _ in members)), dict(ChainMap(*(columns for _, columns in members)))


def _keys(suite: Suite, entry: SuiteEntry, quick: bool) -> dict[str, str]:
    """Say where in the file each part of an entry stands."""
    place = [candidate.label for candidate in suite.entries()].index(entry.label)
    model, keys = _full(SuiteModel, suite.models[place]), {"model": f"models[{place}]"}
    for key in ("data", "methods", "metrics", "target", "evaluator"):
        common = f"quick.{key}" if quick and getattr(suite.quick, key, None) is not None else key
        keys[key] = common if getattr(model, key) is None else f"models[{place}].{key}"
    return keys


def _check_labels(labels: Sequence[str], source: str) -> None:
    for place, name in enumerate(labels):
        with at(source, f"models[{place}]"):
            if not re.fullmatch(r"\w[\w.+-]*", name):
                raise ArgumentError(f"label: expected letters, digits, dots and dashes, but got {name!r}.")
            if name.casefold() in [label.casefold() for label in labels[:place]]:
                raise ArgumentError(f"{name!r} is there twice; give one of them a label.")


def _check_entry(entry: SuiteEntry, source: str, keys: Mapping[str, str]) -> _Table:
    """Check what is asked of a model; give what its table can have."""
    with at(source, keys["model"]):
        _check_model(entry.model)
    with at(source, keys["data"]):
        data = _check_data(entry.data)
    columns: dict[str, Any] = {}
    labels: set[str] = set()
    for place, part in enumerate(entry.metrics):
        with at(source, f"{keys['metrics']}[{place}]"):
            # Without the suite's seed, so that published columns need not name it.
            metric = metric_runs([part.argument], data.kind)[0]
            if metric.label in labels:
                raise ArgumentError(f"{metric.label} is there twice.")
            labels.add(metric.label)
            _check_needs(metric, entry, data)
        for output, better in zip(metric.metric.outputs, metric.metric.better, strict=True):
            columns[metric.label if output == "value" else f"{metric.label} {output}"] = better
    with at(source, keys["target"]):
        if entry.target == "label" and not _has("label", entry.data, data):
            raise ArgumentError(f"target 'label' needs a class of each sample, and {entry.data.name} has none.")
    with at(source, keys["evaluator"]):
        if entry.evaluator is not None:
            _check_model(entry.evaluator)
        if entry.evaluator == entry.model:
            raise ArgumentError(f"expected another network than {entry.model}; leave it out to read the model itself.")
    return _check_methods(entry.methods, data, source, keys["methods"]), columns


def _check_model(name: str) -> None:
    kind, _, model = name.partition(":")
    if kind not in ("zoo", "timm", "hf", "run") or not model:
        raise ArgumentError(f"expected a model as {FORMS}, but got {name!r}.")
    if kind == "zoo":
        names = {*model_names(), *packaged_recipes()}
        _check_known("zoo model", [model], sorted(names))


def _check_data(part: SuiteData) -> DataEntry:
    check_window(part.window)
    data = data_entry(part.name)
    if part.form != "single" and (data.kind != "image" or data.task not in _LABELLED):
        raise ArgumentError(f"form {part.form!r} needs photos with a class each, and {part.name} has none.")
    if part.window is not None and (data.kind != "image" or not part.name.startswith(("folder:", "csv:"))):
        raise ArgumentError(f"window is for photos of one's own (folder:PATH or csv:PATH), not for {part.name}.")
    return data


def _check_methods(methods: Sequence[SuiteMethod], data: DataEntry, source: str, key: str) -> set[str]:
    """Check the methods; give their names in tables, with `all` those of every method for such data."""
    fitting = {name for name, method in all_methods().items() if data.kind in method.modalities}
    controls = {f"{PREFIX}{name}" for name in controls_of(data.kind)}
    names: list[str] = []
    for place, part in enumerate(methods):
        with at(source, f"{key}[{place}]"):
            if part.name == EVERY:
                if part.options:
                    raise ArgumentError("'all' takes no options; name the methods that have them beside it.")
            elif is_control(part.name):
                _check_known("control map", [part.name], sorted(controls))
            else:
                get_method(part.name).check_options(part.options)
                if part.name not in fitting:
                    raise ArgumentError(f"method {part.name!r} is not defined for {data.kind}s.")
            if part.label in names:
                raise ArgumentError(f"{part.label} is there twice.")
            names.append(part.label)
    return {*names, *controls, *(fitting if EVERY in names else ())}


_LABELLED = ("classes", "ordered classes")
_OTHER_NETWORK = "mhex"  # the preset whose paper reads another network than the explained one
_NEEDS = {
    "label": "a class of each sample",
    "mask": "masks",
    "rationale": "the words that people marked",
    "other": "pictures of two classes (data.form side-by-side or mosaic)",
    "tiles": "mosaics (data.form mosaic)",
    "parts": "parts that can be taken away (truth:NAME has them)",
}


def _check_needs(metric: MetricRun, entry: SuiteEntry, data: DataEntry) -> None:
    """Refuse a metric of what the data does not say, and a paper's protocol without the other network it reads."""
    for need in metric.needs:
        if not _has(need, entry.data, data):
            form = "" if entry.data.form == "single" else f" as {entry.data.form} pictures"
            raise ArgumentError(f"{metric.label} needs {_NEEDS[need]}, and {entry.data.name}{form} has none.")
    if metric.preset == _OTHER_NETWORK and entry.evaluator is None:
        raise ArgumentError(f"{metric.label} reads another network than the explained one; name it as evaluator.")


def _has(need: str, part: SuiteData, data: DataEntry) -> bool:
    """Say whether the data tell something about their samples."""
    return {
        "label": data.task in _LABELLED or "two classes" in data.judged,
        "other": part.form != "single" or "two classes" in data.judged,
        "tiles": part.form == "mosaic",
        "mask": part.form == "single" and "masks" in data.judged,
        "rationale": part.form == "single" and "rationales" in data.judged,
        "parts": part.form == "single" and "parts" in data.judged,
    }[need]


def _check_known(kind: str, names: Iterable[str], candidates: Iterable[str]) -> None:
    for name in names:
        if name not in candidates:
            raise unknown_name(kind, name, candidates)


@contextmanager
def at(*places: str) -> Iterator[None]:
    """Put places, such as the file and the key, before what is wrong."""
    try:
        yield
    except MhexError as error:
        raise ArgumentError(f"{': '.join(places)}: {error}") from error
