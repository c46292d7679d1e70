"""Samples with their labels, from a batch or a loader, a few at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor

from mhex._progress import track
from mhex.errors import ArgumentError, ArgumentTypeError
from mhex.heads.heads import Settings
from mhex.heads.losses import check_labels
from mhex.heads.passes import labelled


def in_chunks(
    settings: Settings, inputs: Any, labels: Tensor | None, chunk: int, progress: bool = False
) -> Iterator[tuple[Any, Tensor]]:
    """Inputs and checked labels of at most `chunk` samples at a time.

    Args:
        settings: Of the heads, for the labels.
        inputs: A batch (a tensor, or a dictionary of arguments), or a loader of labelled batches.
        labels: Of a batch; None for a loader, or if they are in the dictionary.
        chunk: The most samples at once.
        progress: Whether to draw a progress bar.
    """
    check_chunk(chunk)
    if isinstance(inputs, (Tensor, Mapping)):
        batch, truth = labelled_batch(settings, inputs, labels)
        pieces = range(0, len(truth), chunk)
        for start in track(pieces, "Collaboration", progress):
            part = slice(start, start + chunk)
            yield take(batch, part, len(truth)), truth[part]
        return
    if labels is not None:
        raise ArgumentError("A loader brings its own labels: leave labels out, or pass one batch as a tensor.")
    if not isinstance(inputs, Iterable):
        raise ArgumentTypeError(
            f"Expected a tensor, a dictionary or a loader of labelled batches, but got {type(inputs).__name__}."
        )
    for batch, truth in labelled(track(inputs, "Collaboration", progress)):
        checked = check_batch(settings, batch, truth)
        for start in range(0, len(checked), chunk):
            part = slice(start, start + chunk)
            yield take(batch, part, len(checked)), checked[part]


def labelled_batch(settings: Settings, inputs: Any, labels: Tensor | None) -> tuple[Any, Tensor]:
    """A batch without labels among its inputs, and its checked labels."""
    if labels is None and isinstance(inputs, Mapping) and ("labels" in inputs or "label" in inputs):
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
    own = labels.shape[0] if isinstance(labels, Tensor) and labels.dim() else None
    batch = own if own in counts else counts[0]
    assert batch is not None
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
