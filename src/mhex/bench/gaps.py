"""Maps that are not finite: their images do not count, and all others do."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Mapping, Sequence

import torch
from torch import Tensor

from mhex.bench.samples import losses_in_words
from mhex.errors import ArgumentError, MhexWarning
from mhex.metrics.case import Case

_OWN = "own"


class Gaps:
    """Samples of a batch whose maps by one method are NaN or infinite.

    Metrics are given zeros in their place, and what they say of such a sample is taken back. Maps beside the own ones
    are known by what they were made for, so that a metric loses the samples whose maps it used, whoever asked first.

    Attributes:
        lost: Ids of the samples that did not count for one of the metrics so far.
    """

    def __init__(self, ids: Sequence[int]) -> None:
        self.ids = tuple(ids)
        self.lost: set[int] = set()
        self._asking: Hashable = None
        self._found: dict[Hashable, Tensor] = {}

    def begin(self, label: str, case: Case) -> None:
        """A metric begins; what it asks a case for is noted from here on."""
        self._asking = ("metric", label)
        case.used = set()

    def own(self, maps: Tensor) -> Tensor:
        """Maps that all metrics read, (B, ...)."""
        return self._filled(maps, _OWN)

    def again(self, maps: Tensor, case: Case) -> Tensor:
        """Maps for what a case is making, which other metrics may share; or for the metric itself."""
        return self._filled(maps, self._asking if case.making is None else ("shared", case.making))

    def of(self, case: Case) -> Tensor:
        """Samples that do not count for the metric that was begun last, bool (B,)."""
        found = torch.zeros(len(self.ids), dtype=torch.bool)
        for part in (_OWN, self._asking, *(("shared", name) for name in case.used)):
            found |= self._found.get(part, torch.tensor(False))
        self.lost |= {i for i, gone in zip(self.ids, found.tolist(), strict=True) if gone}
        return found

    def _filled(self, maps: Tensor, part: Hashable) -> Tensor:
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


def warn_of_lost(lost: Mapping[int, str], count: int) -> None:
    """Say which of so many samples count for no method, and why.

    Raises:
        ArgumentError: No sample is left.
    """
    if not lost:
        return
    sentence = f"{len(lost)} of {count} samples could not be judged: {losses_in_words(lost)}."
    if len(lost) >= count:
        raise ArgumentError(sentence)
    warnings.warn(sentence, MhexWarning, stacklevel=3)
