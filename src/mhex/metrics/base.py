"""The base of all metrics: numbers per image, gathered over batches and processes, with an interval."""

import inspect
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor
from torchmetrics import Metric

from mhex._settings import check_kind, check_that
from mhex.errors import ArgumentError, ArgumentTypeError, unknown_name, warn
from mhex.metrics.case import Case
from mhex.metrics.protocols import READ_PARTS, Protocol
from mhex.perturb import SweepResult
from mhex.stats.intervals import IntervalKind, check_interval, interval_of

# Options of torchmetrics itself, handed on to it.
_OF_TORCHMETRICS = (
    "compute_on_cpu",
    "dist_sync_on_step",
    "process_group",
    "dist_sync_fn",
    "distributed_available_fn",
    "sync_on_compute",
    "compute_with_cache",
)
_SAME = 1e-3  # an image in another batch gives values that differ by rounding
_UNNUMBERED = torch.iinfo(torch.long).min  # stands for the id of an image that has none


@dataclass(frozen=True, eq=False)
class JudgedMaps:
    """Maps, and what the data says of their places."""

    ids: tuple[int, ...]  # number of each sample in its data set
    saliency: Tensor  # maps at their own resolution
    truth: Any = None  # masks, classes of cells, or whether each unit counts; None where every unit does


class PerImage(Metric):
    """A metric with one row of numbers per image.

    Subclasses say what the numbers are (`columns`), how they are made of a result (`score`, by default by the function
    of the metric) and how the value of a data set follows from them (`summary`, by default their mean). The model is
    never part of a metric: passes are made by runners, and results are handed to `update`. The `protocol` says how it
    is measured; it is frozen, and printed with every number.
    """

    full_state_update = False
    is_differentiable = False
    columns: tuple[str, ...] = ("value",)  # names of the numbers of an image
    outputs: tuple[str, ...] = ("value",)  # of what `summary` returns, usually the columns; the first ranks methods
    better: tuple[bool | None, ...] = (True,)  # for each output, whether higher is better; None where neither is
    additive: ClassVar[bool] = True  # whether the value of a data set is the mean of what it is for single images
    hits: ClassVar[bool] = False  # whether the number of an image is 1 for a hit and 0 for a miss
    skips: ClassVar[str] = ""  # which images do not count, in a few words for tables
    function: ClassVar[Callable[..., Tensor]]  # the formula, from results to numbers per image
    presets: ClassVar[Mapping[str, Any]] = MappingProxyType({})  # protocols by name; "default" is the library's own
    ids: list[Tensor]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "columns" in cls.__dict__ and "outputs" not in cls.__dict__:
            cls.outputs = cls.columns

    def __init__(
        self,
        preset: str = "default",
        *,
        confidence: float = 0.95,
        resamples: int = 2000,
        bootstrap_seed: int = 0,
        interval: IntervalKind = "percentile",
        **changes: Any,
    ) -> None:
        """Choose a protocol.

        Args:
            preset: Name of a protocol; see `presets`.
            confidence: Confidence of the interval.
            resamples: Resamples of the bootstrap over images.
            bootstrap_seed: Seed of the bootstrap.
            interval: Kind of the interval; see `mhex.stats.intervals.bootstrap`.
            changes: Parts of the protocol that differ from the preset; and options of `torchmetrics.Metric`.
        """
        super().__init__(**{name: changes.pop(name) for name in _OF_TORCHMETRICS if name in changes})
        check_kind("preset", preset, (str,))
        check_interval(resamples, confidence, bootstrap_seed, interval)
        if preset not in self.presets:
            raise unknown_name("preset", preset, self.presets)
        self.preset = preset
        self.protocol = changed(self.presets[preset], changes)
        self.confidence, self.resamples, self.bootstrap_seed = confidence, resamples, bootstrap_seed
        self.interval = interval
        # A collection updates only one of several metrics whose states have the same names and, after the first batch,
        # the same values. So what is stored has another name unless class and protocol are the same.
        kind = zlib.crc32(f"{type(self).__module__}.{type(self).__qualname__}({self.protocol!r})".encode())
        self._values_name = f"values_{kind:08x}"
        self.add_state(self._values_name, default=[], dist_reduce_fx="cat")
        self.add_state("ids", default=[], dist_reduce_fx="cat")

    @property
    def values(self) -> list[Tensor]:
        """Numbers of the images of each batch, (B, J)."""
        values: list[Tensor] = getattr(self, self._values_name)
        return values

    def score(self, *results: Any) -> Tensor:
        """Numbers of each image, (B,) or (B, J); NaN in a row that does not count.

        By default the function makes them of the results and of the parts of the protocol that have the names of its
        further arguments.
        """
        names = list(inspect.signature(self.function).parameters)[len(results) :]
        parts = {name: getattr(self.protocol, name) for name in names if hasattr(self.protocol, name)}
        return self.function(*results, **parts)

    def of(self, case: Case) -> tuple[Any, ...]:
        """What `update` is given, of a case with shared passes: by default the result of the protocol's only runner."""
        return (case.passes(*self.protocol.passes),)

    def summary(self, rows: Tensor) -> Tensor:
        """From numbers (..., n, J) that all count to the outputs (..., O)."""
        return rows.mean(-2)

    def update(self, *results: Any, ids: Sequence[int] | Tensor | None = None) -> None:
        """Take in a batch.

        Args:
            results: As for the function of the metric, made by the runners of the protocol (`protocol.passes`). Results
                that were made in another way are refused.
            ids: Number of each image in its data set; those of the result if None. An image that comes twice, as where
                a sampler fills the last shard, counts once. Without any number, each image counts.
        """
        results = tuple(map(self._by_protocol, results))
        rows = self.score(*results).detach().double()
        rows = rows[:, None] if rows.dim() == 1 else rows
        expectation = f"{len(self.columns)} numbers per image ({', '.join(self.columns)}) from `score`"
        check_that(rows.dim() == 2 and rows.shape[1] == len(self.columns), expectation, f"shape {tuple(rows.shape)}")
        numbers = getattr(results[0], "ids", None) if ids is None and results else ids
        numbers = [_UNNUMBERED] * len(rows) if numbers is None else numbers
        numbers = torch.as_tensor(numbers, device=rows.device).long()
        check_that(numbers.shape == (len(rows),), f"ids of {len(rows)} images", f"shape {tuple(numbers.shape)}")
        self.values.append(rows)
        self.ids.append(numbers)

    def _by_protocol(self, result: Any) -> Any:
        """A result that was made as the protocol says; others are refused, and finer sweeps are read on its grid."""
        # Maps and classes, and results that were made by hand, say nothing of how they were made.
        source, name, passes = getattr(result, "runner", None), type(self).__name__, self.protocol.passes
        if source is None:
            return result
        runner = next((runner for runner in passes if type(runner) is type(source)), None)
        if runner is None:
            runners = " and ".join(type(runner).__name__ for runner in passes) or "no runner"
            raise ArgumentTypeError(f"Expected results of {runners} for {name}, but got {type(source).__name__}.")
        if isinstance(result, SweepResult) and source.grid == "even" and source.steps % runner.steps == 0:
            result = result.every(source.steps // runner.steps)
            source = result.runner
        parts = [(f.name, getattr(source, f.name), getattr(runner, f.name)) for f in fields(runner)]
        listed = [f"{part}={a!r} (not {b!r})" for part, a, b in parts if a != b and part not in READ_PARTS]
        advice = "; make them by a runner of `metric.protocol.passes`, or give the metric the same parts"
        check_that(not listed, f"results made as the protocol of {name} says", ", ".join(listed), advice)
        return result

    def rows(self) -> tuple[Tensor, Tensor]:
        """Ids (n,) and numbers (n, J) of every image, in the order of the ids, each id once."""
        values = _joined(self.values, (0, len(self.columns)), torch.float64, self.device)
        ids = _joined(self.ids, (0,), torch.long, self.device)
        order = ids.argsort(stable=True)
        ids, values = ids[order], values[order]
        again = torch.zeros_like(ids, dtype=torch.bool)
        again[1:] = (ids[1:] == ids[:-1]) & (ids[1:] != _UNNUMBERED)
        # Of different images under one number, all but the first would be lost without a word.
        different = again & ~torch.isclose(values, values.roll(1, 0), rtol=_SAME, atol=_SAME, equal_nan=True).all(1)
        if bool(different.any()):
            count = int(different.sum())
            warn(f"{count} images came again under an id with other values, and only the first counts; change ids=.")
        return ids[~again], values[~again]

    def compute(self) -> dict[str, Any]:
        """Value, interval, images that count and that do not; `"all"` has every output. NaN where no image counts."""
        _, rows = self.rows()
        finite = rows[rows.isfinite().all(1)].cpu()
        value = low = high = torch.full((len(self.outputs),), torch.nan, dtype=torch.float64)
        if len(finite):
            value = self.summary(finite)
            settings = (self.resamples, self.confidence, self.bootstrap_seed, self.interval, self.hits)
            low, high = interval_of(finite, self.summary, *settings)
        columns = zip(self.outputs, value.tolist(), low.tolist(), high.tolist(), strict=True)
        outputs = {name: {"value": v, "ci_low": start, "ci_high": end} for name, v, start, end in columns}
        return {
            **outputs[self.outputs[0]],
            "n": len(finite),
            "n_skipped": len(rows) - len(finite),
            "all": outputs,
            "confidence": self.confidence,
            "interval": self.interval,
            "resamples": self.resamples,
            "bootstrap_seed": self.bootstrap_seed,
            # As text: torchmetrics walks through results, and cannot through frozen data.
            "protocol": str(self.protocol),
        }

    def _sync_dist(self, *args: Any, **kwargs: Any) -> None:
        """Gather states also from a process without samples: an empty list would break the gathering."""
        if not self.values:
            self.values.append(torch.zeros(0, len(self.columns), dtype=torch.float64, device=self.device))
            self.ids.append(torch.zeros(0, dtype=torch.long, device=self.device))
        super()._sync_dist(*args, **kwargs)


def changed(protocol: Any, changes: Mapping[str, Any]) -> Any:
    """A protocol with some of its parts changed; unknown ones are refused with the list of those that exist."""
    if not isinstance(protocol, Protocol):
        raise ArgumentTypeError(f"Expected a Protocol as preset of a metric, but got {protocol!r}.")
    parts = {f.name: getattr(protocol, f.name) for f in fields(protocol)}
    for name in changes:
        if name not in parts:
            listed = ", ".join(f"{k}={v!r}" for k, v in parts.items())
            why = f": {protocol.absent[name]}" if name in protocol.absent else ""
            raise ArgumentError(f"The protocol has no part {name!r}{why}. Its parts: {listed}.")
    return replace(protocol, **{**protocol.implied(changes), **changes})


def _joined(parts: Any, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A state that is a list before processes are brought together, and a tensor after."""
    if isinstance(parts, Tensor):
        return parts
    return torch.cat(list(parts)) if parts else torch.zeros(shape, dtype=dtype, device=device)
