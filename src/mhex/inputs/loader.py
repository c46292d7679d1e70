"""Reading data: batches with labels or without, from a loader or from tensors, a few samples at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from mhex._progress import track
from mhex.errors import ArgumentError, ArgumentTypeError
from mhex.heads.heads import Settings
from mhex.heads.losses import check_labels

_LABELS = ("labels", "label")


def unlabelled(data: Any) -> Iterator[Any]:
    """Inputs of one batch, or of each batch of a loader, without labels.

    Args:
        data: A tensor or a dictionary of arguments; or a loader of these, or of tuples that begin with them.
    """
    for batch in [data] if isinstance(data, (Tensor, Mapping)) else _iterated(data):
        inputs = batch[0] if isinstance(batch, (tuple, list)) and batch else batch
        yield {k: v for k, v in inputs.items() if k not in _LABELS} if isinstance(inputs, Mapping) else inputs


def labelled(loader: Any) -> Iterator[tuple[Any, Tensor]]:
    """Inputs and labels of each batch of a loader.

    Args:
        loader: Gives `(inputs, labels)`, or dictionaries with `labels` (or `label`) among the model's arguments.
    """
    for batch in loader:
        if isinstance(batch, (tuple, list)) and len(batch) == 2:
            inputs, labels = batch
        elif isinstance(batch, Mapping) and (name := _label_name(batch)) is not None:
            inputs, labels = {k: v for k, v in batch.items() if k != name}, batch[name]
        else:
            raise ArgumentTypeError(
                "Expected batches (inputs, labels), or dictionaries with 'labels', from the loader, but got "
                f"{type(batch).__name__}."
            )
        yield inputs, torch.as_tensor(labels)


class Pieces:
    """A batch with its labels, a few samples at a time; its length serves progress bars.

    Args:
        inputs: A tensor, or a dictionary of arguments.
        labels: One for each sample.
        size: The most samples at once.
    """

    def __init__(self, inputs: Any, labels: Tensor, size: int) -> None:
        self.inputs, self.labels, self.size = inputs, labels, size

    def __len__(self) -> int:
        return -(-len(self.labels) // self.size)

    def __iter__(self) -> Iterator[tuple[Any, Tensor]]:
        for start in range(0, len(self.labels), self.size):
            part = slice(start, start + self.size)
            yield take(self.inputs, part, len(self.labels)), self.labels[part]


def loader_of(data: Any, batch_size: int) -> Iterable[Any]:
    """A loader as it is; `(inputs, labels)` given directly, cut into batches.

    Args:
        data: A loader, or a pair of inputs (a tensor, or a dictionary of tensors) and labels.
        batch_size: Of the batches made here.
    """
    if isinstance(data, (tuple, list)) and len(data) == 2 and isinstance(data[1], Tensor):
        inputs, labels = data
        if isinstance(inputs, (Tensor, Mapping)):
            if labels.dim() == 0:
                raise ArgumentError("Expected one label per sample, (B,), but got a single number; add a batch axis.")
            lengths = sorted(set(_row_counts(inputs)))
            if lengths != [len(labels)]:
                came = " or ".join(map(str, lengths)) or "no"
                raise ArgumentError(
                    f"Expected as many labels as inputs, but got {len(labels)} labels and {came} inputs."
                )
            return Pieces(inputs, labels, batch_size)
    return _iterated(data)


def in_chunks(
    settings: Settings, inputs: Any, labels: Tensor | None, chunk: int, progress: bool = False
) -> Iterator[tuple[Any, Tensor]]:
    """Inputs and checked labels of at most `chunk` samples at a time.

    Args:
        settings: Of the heads, for the labels.
        inputs: A batch (a tensor, or a dictionary of arguments), a loader of labelled batches, or one pair of tensors
            `(inputs, labels)`.
        labels: Of a batch; None for a loader or a pair, or if they are in the dictionary.
        chunk: The most samples at once.
        progress: Whether to draw a progress bar.
    """
    check_chunk(chunk)
    if isinstance(inputs, (Tensor, Mapping)):
        yield from track(Pieces(*labelled_batch(settings, inputs, labels), chunk), "Collaboration", progress)
        return
    if labels is not None:
        raise ArgumentError(
            "Expected one batch beside labels, as a tensor or as a dictionary of the model's arguments, but got "
            f"{_described(inputs)}: turn images and texts into tensors first. A loader brings its own labels: leave "
            "labels out."
        )
    for batch, truth in labelled(track(loader_of(inputs, chunk), "Collaboration", progress)):
        yield from Pieces(batch, check_batch(settings, batch, truth), chunk)


def labelled_batch(settings: Settings, inputs: Any, labels: Tensor | None) -> tuple[Any, Tensor]:
    """A batch without labels among its inputs, and its checked labels."""
    if labels is None and isinstance(inputs, Mapping) and _label_name(inputs) is not None:
        inputs, labels = next(labelled([inputs]))
    if labels is None:
        raise ArgumentError("Expected labels beside a batch: each head has a loss only if the true class is known.")
    return inputs, check_batch(settings, inputs, labels)


def check_batch(settings: Settings, inputs: Any, labels: Tensor) -> Tensor:
    """Labels in the form that the losses take, one for each sample."""
    counts = _row_counts(inputs)
    if not counts or 0 in counts:
        raise ArgumentError("Expected at least one sample, but the batch is empty.")
    # A dictionary may hold tensors that all samples share, for instance position numbers (1, T).
    rows = labels.shape[0] if isinstance(labels, Tensor) and labels.dim() else counts[0]
    batch = rows if rows in counts else counts[0]
    return check_labels(labels, batch, settings.num_classes, settings.multi_label)


def take(inputs: Any, part: slice | Tensor, batch: int) -> Any:
    """Some samples of a batch; what all samples share is passed on.

    Args:
        inputs: A tensor, or a dictionary of arguments.
        part: Which samples.
        batch: How many there are.
    """
    if isinstance(inputs, Tensor):
        return inputs[part]
    return {
        name: value[part] if isinstance(value, Tensor) and value.dim() and value.shape[0] == batch else value
        for name, value in inputs.items()
    }


def check_chunk(chunk: Any) -> None:
    """Refuse a number of samples that cannot be run at once."""
    if not isinstance(chunk, int) or isinstance(chunk, bool) or chunk < 1:
        raise ArgumentError(f"Expected chunk to be a whole number of samples, at least 1, but got {chunk!r}.")


def _row_counts(inputs: Any) -> list[int]:
    values = [inputs] if isinstance(inputs, Tensor) else inputs.values() if isinstance(inputs, Mapping) else []
    return [value.shape[0] for value in values if isinstance(value, Tensor) and value.dim()]


def _described(data: Any) -> str:
    """The type of something, and of what a list holds."""
    inside = f" of {type(data[0]).__name__}" if isinstance(data, (list, tuple)) and data else ""
    return f"{type(data).__name__}{inside}"


def _label_name(batch: Mapping[str, Any]) -> str | None:
    return next((name for name in _LABELS if name in batch), None)


def _iterated(data: Any) -> Iterable[Any]:
    if isinstance(data, (str, bytes)) or not (hasattr(data, "__iter__") or hasattr(data, "__getitem__")):
        raise ArgumentTypeError(
            f"Expected a batch (a tensor, or a dictionary of arguments) or a loader of batches, but got "
            f"{type(data).__name__}."
        )
    return data  # type: ignore[no-any-return]
