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
    """A registered metric.

    Attributes:
        name: What users type.
        metric: The torchmetrics class.
        function: The formula, from a result to numbers per image.
        title: What it asks, in one line.
        paper: Reference.
        passes: Cost per image beside the clean pass that all metrics share, in forward passes F, explanations E and
            steps T.
        traps: What to beware of.
        presets: Protocols of papers by name; `"default"` is the library's own.
        modalities: What it is defined for.
        data: What it needs of the data beside inputs: `"mask"`, `"rationale"`, `"label"`, `"tiles"` or `"two classes"`.
        explains: Whether it explains again, changed images or other classes (`Case.again`).
    """

    name: str
    metric: type[PerImage]
    function: Callable[..., Tensor]
    title: str
    paper: str
    passes: str
    traps: str
    presets: Mapping[str, Any]
    modalities: tuple[str, ...] = ("image", "text")
    data: tuple[str, ...] = ()
    explains: bool = False

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
