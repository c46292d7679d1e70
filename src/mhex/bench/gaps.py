"""Maps that are not finite: their images do not count, and all others do."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from mhex.bench.plan import Judge
from mhex.errors import MhexWarning

_OWN, _OTHER = "own", "other"


class Gaps:
    """Samples of a batch whose maps by one method are NaN or infinite.

    Metrics are given zeros in their place, and what they say of such a sample is taken back.

    Attributes:
        asking: The metric that is being computed; what it has explained again concerns it alone.
    """

    def __init__(self, ids: Sequence[int]) -> None:
        self.ids = tuple(ids)
        self.asking = ""
        self._found: dict[str, Tensor] = {}

    def own(self, maps: Tensor) -> Tensor:
        """Maps that all metrics read, (B, ...)."""
        return self._filled(maps, _OWN)

    def other(self, maps: Tensor) -> Tensor:
        """Maps for another class."""
        return self._filled(maps, _OTHER)

    def again(self, maps: Tensor) -> Tensor:
        """Maps that the metric has asked for."""
        return self._filled(maps, self.asking)

    def of(self, metric: Judge) -> Tensor:
        """Samples that do not count for a metric, bool (B,)."""
        parts = [_OWN, metric.spec.name, *([_OTHER] if "other" in metric.needs else [])]
        found = torch.zeros(len(self.ids), dtype=torch.bool)
        for part in parts:
            found |= self._found.get(part, torch.tensor(False))
        return found

    def lost(self, metrics: Sequence[Judge]) -> set[int]:
        """Ids of the samples that do not count for one of these metrics."""
        return {i for one in metrics for i, gone in zip(self.ids, self.of(one).tolist(), strict=True) if gone}

    def _filled(self, maps: Tensor, part: str) -> Tensor:
        bad = ~maps.flatten(1).isfinite().all(1)
        if not bool(bad.any()):
            return maps
        self._found[part] = self._found.get(part, torch.tensor(False)) | bad.cpu()
        return maps.masked_fill(bad.view(-1, *(1,) * (maps.dim() - 1)), 0.0)


def warn_of(skipped: Mapping[str, set[int]], count: int) -> None:
    """Say for each method how many of so many samples do not count."""
    for method, ids in skipped.items():
        warnings.warn(
            f"Method {method!r} gave maps that are not finite for {len(ids)} of {count} samples; they are skipped.",
            MhexWarning,
            stacklevel=3,
        )
