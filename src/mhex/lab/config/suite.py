"""What a suite file says, as frozen dataclasses. Every key is described here and in docs/bench.md."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from mhex._schema import setting
from mhex.errors import ArgumentError
from mhex.judge.plan import MethodGiven


@dataclass(frozen=True)
class PublishedPart:
    """Numbers of a paper, shown beside ours.

    Attributes:
        paper: Which one.
        table: Where in it.
        note: Data, model and protocol there, and how far numbers can be compared.
        values: By method and column, both as they are called in our tables: `gae: {deletion: 0.1}`.
        percent: Whether they are a hundred times ours.
        models: Labels of the models whose table they stand beside; all by default.
    """

    paper: str
    table: str
    note: str
    values: Mapping[str, Any]
    percent: bool = False
    models: tuple[str, ...] = ()


@dataclass(frozen=True)
class ClaimPart:
    """What is said of methods, to be tested on our rows.

    Attributes:
        words: The claim, in a few words.
        column: As it is called in our tables, without the seed.
        better: Methods that are said to be better, each of them than each of the others.
        than: The others.
        models: Labels of the models that it is tested on; all by default.
    """

    words: str
    column: str
    better: tuple[str, ...]
    than: tuple[str, ...]
    models: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for key in ("better", "than"):
            if not getattr(self, key):
                raise ArgumentError(f"{key} should name a method.")
        if both := [name for name in self.better if name in self.than]:
            raise ArgumentError(f"{both[0]} should not be both better and worse.")
        if any(sign in self.words for sign in "|\n"):
            raise ArgumentError("words should be one line without '|', since they stand in a table.")


All = Literal["all"]
EVERY: All = "all"  # in the place of names: each method that serves the model


@dataclass(frozen=True)
class DataPart:
    """What methods are judged on.

    Attributes:
        name: A data set of `mhex.lab.datasets`.
        split: The set's own split for judging by default.
        limit: At most so many samples, evenly spaced over the split; of pictures of two classes, so many pictures.
        form: `single` samples as they are; or pictures of two classes, made of photos of different groups of classes:
            `side-by-side`, the middle halves of two photos; or `mosaic`, four photos, two of each class.
        window: Of photos of one's own: the values that become black and white.
    """

    name: str
    split: str | None = None
    limit: int | None = setting(None, low=1)
    form: Literal["single", "side-by-side", "mosaic"] = "single"
    window: tuple[float, float] | None = None

    @property
    def options(self) -> dict[str, Any]:
        """For the loader."""
        return {} if self.window is None else {"window": self.window}


@dataclass(frozen=True)
class MethodPart:
    """A method, or a control map as `control:NAME`, with options."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def given(self) -> MethodGiven:
        """As `mhex.evaluate` takes it."""
        return self.name, dict(self.options)


@dataclass(frozen=True)
class MetricPart:
    """A metric, `NAME` or `NAME:PRESET`, with parts of its protocol that differ."""

    name: str
    changes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def given(self) -> tuple[str, Mapping[str, Any]]:
        """As `mhex.evaluate` takes it."""
        return self.name, {key: tuple(one) if isinstance(one, list) else one for key, one in self.changes.items()}


Methods = All | tuple[str | MethodPart, ...]
Metrics = tuple[str | MetricPart, ...]


@dataclass(frozen=True)
class ModelPart:
    """A model, and what is other for it than for the rest of the suite.

    Attributes:
        name: As for `mhex.load`.
        label: What its folder and its table are called; by default the name without what precedes the colon.
        data, methods, leave_out, metrics, target, evaluator: In the place of the suite's.
    """

    name: str
    label: str | None = None
    data: DataPart | None = None
    methods: Methods | None = None
    leave_out: tuple[str, ...] | None = None
    metrics: Metrics | None = None
    target: str | int | None = None
    evaluator: str | None = None


@dataclass(frozen=True)
class QuickPart:
    """What `--quick` changes, so that a suite can be tried in minutes.

    Attributes:
        limit: Of all data.
        methods: In the place of the suite's; models with methods of their own keep them.
        metrics: Likewise.
        leave_out: Methods that are left out beside those of the suite.
        models: Labels of the models that are kept; all by default.
    """

    limit: int = setting(low=1)
    methods: Methods | None = None
    metrics: Metrics | None = None
    leave_out: tuple[str, ...] = ()
    models: tuple[str, ...] = ()


@dataclass(frozen=True)
class Suite:
    """A benchmark: methods by metrics by models by data.

    Attributes:
        name: In small letters, digits and dashes; folders are called so.
        title: In one line.
        data: What is judged on.
        models: Each a name, or a mapping with what is other for it.
        metrics: Names, `NAME:PRESET`, or mappings with changes.
        methods: Names, mappings with options, or `all` for each that serves the model; `all` may also stand in a list,
            beside methods with options.
        leave_out: Methods that are not judged where `all` are.
        target: The class that is explained: `predicted`, `label`, a number or a name.
        controls: Judge control maps too.
        evaluator: Another network whose outputs are read in the place of the explained one's.
        batch_size: Samples that are explained at once.
        seed: Of methods, ties, boxes, noise and pictures of two classes.
        curves: Keep the curves of metrics that have some, for the pages.
        pictures: Of so many samples, the first, keep the maps by all methods, for the HTML page.
        charts: Draw the curves on the page in Markdown too, as SVG files beside it.
        about: A few sentences for the page.
        published: Numbers of papers.
        claims: What papers say of methods, to be tested.
        reading: What reproduces and what does not, and why.
        quick: What `--quick` changes.
    """

    name: str
    title: str
    data: DataPart
    models: tuple[str | ModelPart, ...]
    metrics: Metrics
    quick: QuickPart
    methods: Methods = "all"
    leave_out: tuple[str, ...] = ()
    target: str | int = "predicted"
    controls: bool = True
    evaluator: str | None = None
    batch_size: int = setting(16, low=1)
    seed: int = setting(0, low=0)
    curves: bool = True
    pictures: int = setting(4, low=0)
    charts: bool = False
    about: str = ""
    published: tuple[PublishedPart, ...] = ()
    claims: tuple[ClaimPart, ...] = ()
    reading: str = ""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", self.name):
            raise ArgumentError(f"name should be small letters, digits and single dashes, not {self.name!r}.")
        for key in ("models", "metrics", "methods"):
            if not getattr(self, key):
                raise ArgumentError(f"{key} should not be empty.")
        if self.charts and not self.curves:
            raise ArgumentError("charts draw curves, so curves should be true beside charts.")

    def entries(self, quick: bool = False) -> list[Entry]:
        """The models with all that is asked of each.

        Args:
            quick: In the quick form.
        """
        found = [self._entry(one if isinstance(one, ModelPart) else ModelPart(one), quick) for one in self.models]
        kept = self.quick.models if quick else ()
        return [one for one in found if not kept or one.label in kept]

    def networks(self, quick: bool = False) -> list[str]:
        """Names of all models and evaluators.

        Args:
            quick: In the quick form.
        """
        named = (name for one in self.entries(quick) for name in (one.model, one.evaluator))
        return list(dict.fromkeys(name for name in named if name is not None))

    def _entry(self, model: ModelPart, quick: bool) -> Entry:
        faster = self.quick if quick else None
        methods, metrics = self.methods, self.metrics
        if faster is not None:
            methods, metrics = faster.methods or methods, faster.metrics or metrics
        data = model.data or self.data
        leave_out = self.leave_out if model.leave_out is None else model.leave_out
        return Entry(
            label=model.label or _plain(model.name),
            model=model.name,
            data=data if faster is None else replace(data, limit=faster.limit),
            methods=_parts(model.methods or methods),
            metrics=tuple(MetricPart(one) if isinstance(one, str) else one for one in model.metrics or metrics),
            leave_out=leave_out if faster is None else (*leave_out, *faster.leave_out),
            target=self.target if model.target is None else model.target,
            evaluator=model.evaluator or self.evaluator,
        )


@dataclass(frozen=True)
class Entry:
    """One model of a suite with all that is asked of it; see `Suite` and `ModelPart`."""

    label: str
    model: str
    data: DataPart
    methods: tuple[MethodPart, ...]
    metrics: tuple[MetricPart, ...]
    leave_out: tuple[str, ...]
    target: str | int
    evaluator: str | None

    def wanted(self, name: str) -> bool:
        """Whether a method that serves the model is judged."""
        return name not in self.leave_out


def method_label(part: MethodPart) -> str:
    """What a method is called in tables."""
    from mhex.judge.plan import MethodRun

    return MethodRun(part.name, part.options).label


def _parts(methods: Methods) -> tuple[MethodPart, ...]:
    listed = (EVERY,) if methods == EVERY else methods
    return tuple(MethodPart(one) if isinstance(one, str) else one for one in listed)


def _plain(name: str) -> str:
    """A folder's name for a model: `blood-vit` of `zoo:blood-vit`."""
    return re.sub(r"[^\w.+-]+", "-", name.partition(":")[2] or name).strip("-.")
