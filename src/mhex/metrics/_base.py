"""What every metric is: values per image, gathered over batches and processes, with an honest interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor
from torchmetrics import Metric

from mhex.errors import ArgumentError, unknown_name
from mhex.metrics.case import Case
from mhex.metrics.statistics import bootstrap


class PerImage(Metric):
    """A metric with one row of numbers per image.

    Subclasses say what the numbers are (`columns`), how they are made of a result (`score`) and how the value of a data
    set follows from them (`summary`, by default their mean). The model is never part of a metric: passes are made by
    the sweeps and runners of `mhex.perturb`, and results are handed to `update`.

    Attributes:
        columns: Names of the numbers of an image.
        outputs: Names of what `summary` returns; the first is the value by which methods are ranked.
        better: For each output, whether higher is better.
        presets: Protocols of papers by name; `"default"` is the library's own.
        protocol: How it is measured, frozen; printed with every number.
    """

    full_state_update = False
    is_differentiable = False
    columns: tuple[str, ...] = ("value",)
    outputs: tuple[str, ...] = ("value",)
    better: tuple[bool, ...] = (True,)
    presets: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    values: list[Tensor]
    ids: list[Tensor]

    def __init__(
        self,
        preset: str = "default",
        *,
        confidence: float = 0.95,
        resamples: int = 2000,
        bootstrap_seed: int = 0,
        **changes: Any,
    ) -> None:
        """Choose a protocol.

        Args:
            preset: Name of a protocol; see `presets`.
            confidence: Of the interval.
            resamples: Of the bootstrap over images.
            bootstrap_seed: Of the bootstrap.
            changes: Parts of the protocol that differ from the preset.
        """
        super().__init__()
        if preset not in self.presets:
            raise unknown_name("preset", preset, self.presets)
        self.preset = preset
        self.protocol = changed(self.presets[preset], changes)
        self.confidence, self.resamples, self.bootstrap_seed = confidence, resamples, bootstrap_seed
        self.add_state("values", default=[], dist_reduce_fx="cat")
        self.add_state("ids", default=[], dist_reduce_fx="cat")

    def score(self, *results: Any) -> Tensor:
        """Numbers of each image, (B,) or (B, J); NaN in a row that does not count."""
        raise NotImplementedError

    def of(self, case: Case) -> tuple[Any, ...]:
        """What `update` is given, taken from a case that shares its passes with other metrics."""
        raise NotImplementedError

    def summary(self, rows: Tensor) -> Tensor:
        """From numbers (..., n, J) that all count to the outputs (..., O)."""
        return rows.mean(-2)

    def update(self, *results: Any, ids: Sequence[int] | Tensor | None = None) -> None:
        """Take in a batch.

        Args:
            results: As for the function of the metric.
            ids: Number of each image in its data set; those of the result if None. An image that comes twice, as where
                a sampler fills the last shard, counts once.
        """
        rows = self.score(*results).detach().double()
        rows = rows[:, None] if rows.dim() == 1 else rows
        numbers = getattr(results[0], "ids", None) if ids is None else ids
        if numbers is None:
            seen = sum(len(one) for one in self.ids)
            numbers = range(seen, seen + len(rows))
        numbers = torch.as_tensor(list(numbers), device=rows.device).long()
        if len(numbers) != len(rows):
            raise ArgumentError(f"Expected ids of {len(rows)} images, but got {len(numbers)}.")
        self.values.append(rows)
        self.ids.append(numbers)

    def rows(self) -> tuple[Tensor, Tensor]:
        """Ids (n,) and numbers (n, J) of every image, in the order of the ids, each id once."""
        values = _joined(self.values, (0, len(self.columns)), torch.float64, self.device)
        ids = _joined(self.ids, (0,), torch.long, self.device)
        order = ids.argsort(stable=True)
        ids, values = ids[order], values[order]
        first = torch.ones_like(ids, dtype=torch.bool)
        first[1:] = ids[1:] != ids[:-1]
        return ids[first], values[first]

    def compute(self) -> dict[str, Any]:
        """Value, interval, number of images that count and of those that do not; `"all"` has every output.

        Without an image that counts, values are NaN.
        """
        _, rows = self.rows()
        counted = rows[rows.isfinite().all(1)]
        found: dict[str, dict[str, float]] = {}
        if len(counted):
            value = self.summary(counted)
            low, high = bootstrap(counted, self.summary, self.resamples, self.confidence, self.bootstrap_seed)
        else:
            value = low = high = torch.full((len(self.outputs),), torch.nan, dtype=torch.float64)
        for k, name in enumerate(self.outputs):
            found[name] = {"value": float(value[k]), "ci_low": float(low[k]), "ci_high": float(high[k])}
        sizes = {"n": len(counted), "n_skipped": len(rows) - len(counted)}
        return {**found[self.outputs[0]], **sizes, "all": found, "protocol": str(self.protocol)}

    def _sync_dist(self, *args: Any, **kwargs: Any) -> None:
        """A process without a sample takes part with nothing of the right kind: an empty list breaks the gathering."""
        if not self.values:
            self.values.append(torch.zeros(0, len(self.columns), dtype=torch.float64, device=self.device))
            self.ids.append(torch.zeros(0, dtype=torch.long, device=self.device))
        super()._sync_dist(*args, **kwargs)


def changed(protocol: Any, changes: Mapping[str, Any]) -> Any:
    """A protocol with some of its parts changed; unknown ones are refused with the list of those that exist."""
    assert is_dataclass(protocol)
    known = {f.name: getattr(protocol, f.name) for f in fields(protocol)}
    for name in changes:
        if name not in known:
            listed = ", ".join(f"{k}={v!r}" for k, v in known.items())
            raise ArgumentError(f"The protocol has no part {name!r}. Its parts: {listed}.")
    return replace(protocol, **changes)  # type: ignore[type-var]


def _joined(parts: Any, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A state that is a list before processes are brought together, and a tensor after."""
    if isinstance(parts, Tensor):
        return parts
    return torch.cat(list(parts)) if parts else torch.zeros(shape, dtype=dtype, device=device)
