"""Collections of inputs, a few at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor

_LABELS = ("label", "labels")


def in_batches(inputs: Any, size: int) -> Iterator[Any]:
    """What `mhex.explain` takes, in pieces of at most `size` samples.

    Args:
        inputs: A batch as for `mhex.explain`, of any length; or a loader, whose batches are given as they come, without
            labels: alone, first in tuples, or in dictionaries.
        size: The most samples of a piece that is cut here.
    """
    if isinstance(inputs, (Tensor, list, tuple)):
        yield from (inputs[start : start + size] for start in range(0, len(inputs), size))
    elif isinstance(inputs, Mapping):
        count = next((len(v) for v in inputs.values() if isinstance(v, Tensor) and v.dim()), 0)
        for start in range(0, count, size):
            part = slice(start, start + size)
            yield {k: v[part] if isinstance(v, Tensor) and v.dim() else v for k, v in inputs.items()}
    elif isinstance(inputs, Iterable) and not isinstance(inputs, str):
        for batch in inputs:
            first = batch[0] if isinstance(batch, (list, tuple)) else batch
            yield {k: v for k, v in first.items() if k not in _LABELS} if isinstance(first, Mapping) else first
    else:
        yield inputs
