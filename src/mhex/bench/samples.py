"""Data to be judged on, whatever form it comes in, a few samples at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from mhex.errors import ArgumentError, ArgumentTypeError

_INPUTS = ("inputs", "image", "images", "text", "texts")
_LABELS = ("label", "labels")
_MASKS = ("mask", "masks")
_BESIDE = (*_LABELS, *_MASKS, "rationale", "other", "tiles")


@dataclass(frozen=True)
class Samples:
    """A batch of samples.

    Attributes:
        inputs: As for `mhex.explain`.
        ids: Number of each in the data set.
        label: Classes (B,); None if not known.
        mask: Segmentation (B, H, W): 1 at the object, 0 elsewhere, -1 to be ignored; None if there is none.
        rationale: Of texts: numbers of the words that people marked, a list for each; None if there is none.
        other: Another class that is in each image, (B,), -1 where there is none; None if not known.
        tiles: Of mosaics: the class of each cell, (B, n * n); see `mhex.perturb.mosaics`.
    """

    inputs: Any
    ids: tuple[int, ...]
    label: Tensor | None = None
    mask: Tensor | None = None
    rationale: list[list[int]] | None = None
    other: Tensor | None = None
    tiles: Tensor | None = None


def in_samples(data: Any, size: int, limit: int | None = None) -> Iterator[Samples]:
    """Batches of samples, numbered in the order of the data.

    Args:
        data: A loader of batches; or a data set, list, tensor, tuple of tensors or dictionary, which is cut here. An
            item or batch is inputs alone, `(inputs, label)`, `(inputs, label, mask)`, or a dictionary with `inputs`,
            `image` or `text`, or the model's own arguments, and beside them `label`, `mask`, `rationale`, `other`.
        size: The most samples of a batch that is cut here.
        limit: The most samples in all.
    """
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ArgumentError(f"Expected batch_size to be a whole number from 1 on, but got {size!r}.")
    if limit is not None and limit < 1:
        raise ArgumentError(f"Expected limit to be at least 1, but got {limit}.")
    start = 0
    for batch in _batches(data, size):
        made = _samples(batch, start)
        if limit is not None and start + len(made.ids) > limit:
            made = _first(made, limit - start)
        if made.ids:
            yield made
        start += len(made.ids)
        if limit is not None and start >= limit:
            return
    if start == 0:
        raise ArgumentError("Expected at least one sample, but the data is empty.")


def count_samples(data: Any, limit: int | None = None) -> int | None:
    """How many samples there will be; None if that is not known."""
    inner = getattr(data, "dataset", data)
    first = inner[0] if isinstance(inner, tuple) and inner and isinstance(inner[0], Tensor) else inner
    if isinstance(first, Mapping):
        first = next((value for value in first.values() if isinstance(value, (Tensor, list))), None)
    count = len(first) if isinstance(first, Sized) else None
    return count if limit is None or count is None else min(count, limit)


def _batches(data: Any, size: int) -> Iterator[Any]:
    if isinstance(data, (str, bytes)):
        raise ArgumentTypeError("Expected a collection of samples, but got one string; give a list.")
    if isinstance(data, Tensor) or _columns(data):
        length = len(data) if isinstance(data, Tensor) else len(next(iter(_values(data))))
        for start in range(0, length, size):
            yield _cut(data, slice(start, start + size))
    elif hasattr(data, "__getitem__") and hasattr(data, "__len__") and not hasattr(data, "batch_size"):
        for start in range(0, len(data), size):
            yield _stack([data[i] for i in range(start, min(start + size, len(data)))])
    elif isinstance(data, Iterable):
        yield from data
    else:
        raise ArgumentTypeError(
            f"Expected a loader, a data set, a list, a tensor or a dictionary, but got {type(data).__name__}."
        )


def _columns(data: Any) -> bool:
    """True of a tuple of tensors or a dictionary, each with a row per sample."""
    if isinstance(data, Mapping):
        return True
    return isinstance(data, tuple) and bool(data) and isinstance(data[0], Tensor) and data[0].dim() > 1


def _values(data: Any) -> Iterable[Any]:
    found = [v for v in (data.values() if isinstance(data, Mapping) else data) if isinstance(v, (Tensor, list))]
    if not found:
        raise ArgumentError("Expected tensors or lists with a row for each sample, but the dictionary has none.")
    return found


def _cut(data: Any, part: slice) -> Any:
    if isinstance(data, Mapping):
        return {k: v[part] if isinstance(v, (Tensor, list)) else v for k, v in data.items()}
    return data[part] if isinstance(data, Tensor) else tuple(v[part] for v in data)


def _stack(items: list[Any]) -> Any:
    """Items of a data set as a batch: tensors stacked, numbers as a tensor, others as a list."""
    first = items[0]
    if isinstance(first, (tuple, list)):
        return tuple(_stack([item[k] for item in items]) for k in range(len(first)))
    if isinstance(first, Mapping):
        # Word numbers of texts have different lengths.
        return {k: [item[k] for item in items] if k == "rationale" else _stack([i[k] for i in items]) for k in first}
    if isinstance(first, Tensor):
        return torch.stack(items)
    if isinstance(first, Integral):
        return torch.tensor([int(item) for item in items])
    return items


def _samples(batch: Any, start: int) -> Samples:
    found: dict[str, Any] = {}
    if isinstance(batch, Mapping):
        found = {key: value for key, value in batch.items() if key in ("rationale", "other", "tiles")}
        found["label"] = next((batch[key] for key in _LABELS if key in batch), None)
        found["mask"] = next((batch[key] for key in _MASKS if key in batch), None)
        own = next((batch[key] for key in _INPUTS if key in batch), None)
        inputs = {k: v for k, v in batch.items() if k not in _BESIDE} if own is None else own
    elif isinstance(batch, (tuple, list)) and _labelled(batch):
        inputs, found["label"] = batch[0], batch[1]
        found["mask"] = batch[2] if len(batch) > 2 else None
    else:
        inputs = batch
    size = _length(inputs)
    tensors = {
        k: None if found.get(k) is None else torch.as_tensor(found[k]) for k in ("label", "mask", "other", "tiles")
    }
    for name, value in tensors.items():
        if value is not None and len(value) != size:
            raise ArgumentError(f"Expected a {name} for each of {size} samples, but got {len(value)}.")
    return Samples(inputs, tuple(range(start, start + size)), rationale=found.get("rationale"), **tensors)


def _labelled(batch: Sequence[Any]) -> bool:
    """True of `(inputs, label)` and `(inputs, label, mask)`, and not of a list of photos or strings."""
    if len(batch) not in (2, 3) or isinstance(batch[0], str):
        return False
    numbers = isinstance(batch[1], (list, tuple)) and all(isinstance(one, Integral) for one in batch[1])
    return isinstance(batch[1], Tensor) or numbers


def _length(inputs: Any) -> int:
    if isinstance(inputs, Mapping):
        return max((len(v) for v in inputs.values() if isinstance(v, (Tensor, list))), default=0)
    return len(inputs)


def _first(samples: Samples, count: int) -> Samples:
    part = slice(0, count)

    def cut(value: Any) -> Any:
        return None if value is None else value[part]

    inputs = _cut(samples.inputs, part) if isinstance(samples.inputs, Mapping) else samples.inputs[part]
    return Samples(
        inputs,
        samples.ids[:count],
        *map(cut, (samples.label, samples.mask, samples.rationale, samples.other, samples.tiles)),
    )
