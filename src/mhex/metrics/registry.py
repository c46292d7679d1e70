"""The list of metrics. One decorator adds one; menus, docs, reports and tests read it from here."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from mhex.metrics.base import PerImage
from mhex.registry import Registry, import_modules


@dataclass(frozen=True)
class MetricSpec:
    """A registered metric."""

    name: str  # what users type
    metric: type[PerImage]
    function: Callable[..., Tensor]  # the formula, from a result to numbers per image
    title: str  # what it asks, in one line
    paper: str
    passes: str  # per image beside the clean pass that all metrics share: forward passes F, explanations E and steps T
    traps: str  # what to beware of
    presets: Mapping[str, Any]  # protocols of papers by name; "default" is the library's own
    modalities: tuple[str, ...] = ("image", "text")
    data: tuple[str, ...] = ()  # what it needs beside inputs: mask, rationale, label, tiles or two classes
    explains: bool = False  # whether it explains again, changed images or other classes (`Case.again`)

    def __post_init__(self) -> None:
        self.metric.function = staticmethod(self.function)
        self.metric.presets = self.presets
        self.metric.higher_is_better = self.higher_is_better

    @property
    def higher_is_better(self) -> bool:
        return bool(self.metric.better[0])


METRICS: Registry[MetricSpec] = Registry("metric")
register_metric = METRICS.decorator(MetricSpec)  # registers the class; its arguments are the fields of `MetricSpec`


def all_metrics() -> dict[str, MetricSpec]:
    """Every registered metric by name; the files of `mhex.metrics` are imported on first use."""
    import mhex.metrics

    import_modules(mhex.metrics.__name__)
    return METRICS.sorted()


def get_metric(name: str) -> MetricSpec:
    """The metric called `name`."""
    all_metrics()
    return METRICS.get(name)


def list_metrics() -> list[dict[str, Any]]:
    """One row per metric: name, title, paper, modality, higher_is_better, passes, data, presets, outputs."""
    return [
        {
            "name": m.name,
            "title": m.title,
            "paper": m.paper,
            "modality": ", ".join(m.modalities),
            "higher_is_better": m.higher_is_better,
            "passes": m.passes,
            "data": ", ".join(m.data),
            "presets": {name: str(protocol) for name, protocol in m.presets.items()},
            "outputs": m.metric.outputs,
            "summary": inspect.getdoc(m.function) or "",
        }
        for m in all_metrics().values()
    ]
