"""Data in batches, whatever form it comes in: columns, items or batches, with a length or without."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from itertools import chain
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mhex.errors import ArgumentError, ArgumentTypeError, MhexError
from mhex.inputs.prepared import check_dense

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


BESIDE = ("label", "mask", "rationale", "other", "tiles")
_INPUTS = ("inputs", "image", "images", "text", "texts")
_PLURAL = {"label": "labels", "mask": "masks"}
_AXES = {"pixel_values": 4, "input_ids": 2, "inputs_embeds": 3}  # of a batch of the model's own arguments
# What reading a damaged or missing file raises: PIL, the system, and our own data sets.
_UNREADABLE = (OSError, SyntaxError, EOFError, struct.error, zlib.error, MhexError)
Parts = dict[str, Any]


def raw_batches(data: Any, size: int, limit: int | None, unread: dict[int, str]) -> Iterator[Parts]:
    """Batches, each a dictionary of `inputs` and what is known beside them, None where nothing is.

    Items of a list or data set that cannot be read are left out. A loader or generator ends with its first error, so
    that such an error is raised.

    Args:
        data: As for `mhex.inputs.samples.in_samples`.
        size: The most samples of a batch that is made here; those of loaders stay as they are.
        limit: No more items are read than this.
        unread: Filled with the places of items that cannot be read, and why.
    """
    if isinstance(data, (str, bytes)):
        raise ArgumentTypeError("Expected a collection of samples, but got one string; give a list.")
    if _is_columns(data):
        yield from _cut(parts_of(data), size)
        return
    elements = _elements(data, unread)
    first = next(elements, None)
    if first is None:
        return
    elements = chain([first], elements)
    if not is_batch(first[1]):
        yield from _gathered(({**parts_of(item), "place": place} for place, item in _first(elements, limit)), size)
        return
    for _, batch in elements:
        _check_batches(unread)
        yield from _even(parts_of(batch))
    _check_batches(unread)


def count_samples(data: Any, items: bool, limit: int | None = None) -> int | None:
    """How many samples there are; None if that is not known before they are read.

    Args:
        data: As for `mhex.evaluate`.
        items: Whether it holds single items, as the first of it showed.
        limit: The most samples.
    """
    if _is_columns(data):
        count = length(parts_of(data)["inputs"])
    elif items and hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        count = len(data)
    else:
        return None
    return count if limit is None else min(count, limit)


def count_batches(data: Any, size: int, limit: int | None = None) -> int | None:
    """About how many batches there will be; None if that is not known."""
    if _is_columns(data):
        count = length(parts_of(data)["inputs"])
    elif not isinstance(data, Sized):
        return None
    else:
        try:
            count = len(data)
        except TypeError:  # a loader of a stream
            return None
        if hasattr(data, "batch_size"):  # a loader
            return count if limit is None or not data.batch_size else min(count, -(-limit // data.batch_size))
        if isinstance(data, (list, tuple)) and data and is_batch(data[0]):
            return count
    return -(-(count if limit is None else min(count, limit)) // size)


def parts_of(element: Any) -> Parts:
    """An item or a batch as `inputs`, and what the data says of them."""
    found: Parts = {"inputs": element, **dict.fromkeys(BESIDE)}
    if isinstance(element, Mapping):
        names = {name: _PLURAL.get(name, name) for name in BESIDE}
        for name, plural in names.items():
            found[name] = element.get(name, element.get(plural))
        own = next((key for key in _INPUTS if key in element), None)
        rest = {k: v for k, v in element.items() if k not in names and k not in names.values()}
        if own is None and not any(key in rest for key in _AXES):
            known = ", ".join((*_INPUTS, *_AXES))
            raise ArgumentError(
                f"Expected the inputs of samples under one of the keys {known}, but got the keys "
                f"{', '.join(map(str, element)) or 'of an empty dictionary'}; beside inputs, {', '.join(BESIDE)} are "
                "known."
            )
        found["inputs"] = rest if own is None else element[own]
    elif isinstance(element, (tuple, list)) and _is_labelled(element):
        found.update(zip(("inputs", "label", "mask"), element, strict=False))
    return found


def is_batch(element: Any) -> bool:
    """True of a batch, False of a single item."""
    inputs = parts_of(element)["inputs"]
    if isinstance(inputs, Mapping):
        axes = next((_axes(inputs[key]) - wanted for key, wanted in _AXES.items() if key in inputs), 0)
        return axes >= 0
    if isinstance(inputs, (Tensor, np.ndarray)):
        whole = not inputs.is_floating_point() if isinstance(inputs, Tensor) else inputs.dtype.kind != "f"
        return inputs.ndim > 3 or (whole and inputs.ndim == 2)
    return isinstance(inputs, (list, tuple))


def holds_batches(data: Any) -> bool:
    """Whether what a sequence holds are batches, told by the first that can be read."""
    first = next(readable(data, {}), None)
    return first is not None and is_batch(first[1])


def is_photo(value: Any) -> bool:
    """True of a PIL image, which is told by its class so that PIL is not imported for users of tensors."""
    return any(c.__module__ == "PIL.Image" and c.__name__ == "Image" for c in type(value).__mro__)


def length(inputs: Any) -> int:
    """Number of samples of a batch."""
    if isinstance(inputs, Mapping):
        return max((len(value) for value in inputs.values() if _is_column(value)), default=0)
    if not isinstance(inputs, Sized) or (isinstance(inputs, (Tensor, np.ndarray)) and not inputs.ndim):
        raise ArgumentTypeError(f"Expected a batch of inputs, but got {type(inputs).__name__}.")
    return len(inputs)


def cut(value: Any, part: slice) -> Any:
    """Some samples of a batch of inputs, or of what is known of them."""
    if isinstance(value, Mapping):
        return {k: v[part] if _is_column(v) else v for k, v in value.items()}
    return None if value is None else value[part]


def taken(value: Any, places: Sequence[int]) -> Any:
    """The samples at some places of a batch of inputs, or of what is known of them."""
    if isinstance(value, Mapping):
        return {k: taken(v, places) if _is_column(v) else v for k, v in value.items()}
    if value is None or isinstance(value, (Tensor, np.ndarray)):
        return None if value is None else value[list(places)]
    return [value[place] for place in places]


def _axes(value: Any) -> int:
    return value.ndim if hasattr(value, "ndim") else 1 + _axes(value[0]) if isinstance(value, list) and value else 0


def _is_column(value: Any) -> bool:
    return isinstance(value, (list, tuple)) or (isinstance(value, (Tensor, np.ndarray)) and value.ndim > 0)


def _is_columns(data: Any) -> bool:
    """True of a tensor, a dictionary, and a tuple of a batch of inputs and what is known of them."""
    if isinstance(data, (Tensor, Mapping)):
        return True
    if not isinstance(data, tuple) or not data:
        return False
    if isinstance(data[0], list):
        kinds = {str if isinstance(one, str) else is_photo(one) for one in data[0]}
        return len(data) in (2, 3) and kinds in ({str}, {True}) and (data[1] is None or _is_column(data[1]))
    return isinstance(data[0], Tensor) and is_batch(data[0])


def _is_labelled(element: tuple[Any, ...] | list[Any]) -> bool:
    """True of `(inputs, label)` and `(inputs, label, mask)`, and not of a list of photos, strings or tensors."""
    if len(element) not in (2, 3):
        return False
    first, second = element[:2]
    if isinstance(first, str):  # texts in a list; or a text and the name of its class, in a tuple
        return not isinstance(second, str) or isinstance(element, tuple)
    if isinstance(second, Tensor):
        return second.ndim < 3
    return not is_photo(second)


def _elements(data: Any, unread: dict[int, str]) -> Iterator[tuple[int, Any]]:
    """Items or batches with their places."""
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not hasattr(data, "batch_size"):
        return readable(data, unread)
    if isinstance(data, Iterable):
        return enumerate(data)
    raise ArgumentTypeError(
        f"Expected a loader, a data set, a list, a generator, a tensor or a dictionary, but got {type(data).__name__}."
    )


def readable(data: Any, unread: dict[int, str]) -> Iterator[tuple[int, Any]]:
    """Items of a list or data set with their places, those left out that cannot be read.

    Args:
        data: Whose items are taken by number.
        unread: Filled with the places of the others, and why they cannot be read.
    """
    for place in range(len(data)):
        try:
            element = data[place]
            for value in element.values() if isinstance(element, Mapping) else _listed(element):
                if is_photo(value):
                    _load(value)
        except _UNREADABLE as error:
            unread[place] = " ".join(str(error).split()).rstrip(".") or type(error).__name__
            continue
        yield place, element


def _load(photo: Any) -> None:
    """Read a PIL image now: PIL reads a file when it is needed, and finds out then that it is damaged or closed."""
    try:
        photo.load()
    except ValueError as error:
        raise ArgumentError(f"the photo cannot be read ({error})") from error


def _listed(element: Any) -> Iterable[Any]:
    return element if isinstance(element, (tuple, list)) else (element,)


def _first(elements: Iterable[tuple[int, Any]], limit: int | None) -> Iterator[tuple[int, Any]]:
    """Those with places below a limit; no more are read."""
    for place, element in elements:
        if limit is None or place < limit:
            yield place, element
        if limit is not None and place + 1 >= limit:
            return


def _check_batches(unread: Mapping[int, str]) -> None:
    """Refuse a whole batch that cannot be read: nobody knows how many samples it has."""
    for place, reason in unread.items():
        raise ArgumentError(f"Expected batches that can be read, but batch {place} cannot: {reason}.")


def check_lengths(parts: Parts) -> None:
    """Refuse a batch with more or fewer labels, masks or arguments than inputs, or with tensors that are not dense."""
    _check_tensors(parts)
    count = length(parts["inputs"])
    own = parts["inputs"].items() if isinstance(parts["inputs"], Mapping) else ()
    for name, value in (*((name, parts[name]) for name in BESIDE), *own):
        if value is None or (name not in BESIDE and not _is_column(value)):
            continue
        if not _is_column(value) or len(value) != count:
            came = len(value) if _is_column(value) else f"1 {type(value).__name__}"
            raise ArgumentError(f"Expected a {name} for each of {count} samples, but got {came}.")


def _check_tensors(parts: Parts) -> None:
    for name, value in parts.items():
        for part in value.values() if isinstance(value, Mapping) else [value]:
            if isinstance(part, Tensor):
                check_dense(part, name)


def _cut(parts: Parts, size: int) -> Iterator[Parts]:
    check_lengths(parts)
    count = length(parts["inputs"])
    for start in range(0, count, size):
        yield {name: cut(value, slice(start, start + size)) for name, value in parts.items()}


def _even(batch: Parts) -> Iterator[Parts]:
    """A batch as it is, but for images in a list, which are stacked as far as their sizes are the same."""
    inputs = batch["inputs"]
    if not isinstance(inputs, (list, tuple)) or not inputs or not all(isinstance(one, Tensor) for one in inputs):
        yield batch
        return
    check_lengths(batch)
    rows = range(len(inputs))
    items = ({name: None if value is None else value[n] for name, value in batch.items()} for n in rows)
    yield from _gathered(items, len(inputs))


def _gathered(items: Iterable[Parts], size: int) -> Iterator[Parts]:
    """Items in batches; one whose tensors have another shape begins a batch of its own."""
    held: list[Parts] = []
    for parts in items:
        _check_tensors(parts)
        if held and (len(held) == size or _shapes(parts["inputs"]) != _shapes(held[0]["inputs"])):
            yield _joined(held)
            held = []
        held.append(parts)
    if held:
        yield _joined(held)


def _shapes(inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        return {key: _shapes(value) for key, value in inputs.items()}
    if isinstance(inputs, Tensor):
        return tuple(inputs.shape)
    return len(inputs) if isinstance(inputs, (list, tuple)) else None


def _joined(items: list[Parts]) -> Parts:
    """A batch of items: inputs stacked, and the rest as lists."""
    rest = {name: [item[name] for item in items] for name in BESIDE}
    ids = [item["place"] for item in items] if "place" in items[0] else None
    try:
        return {"inputs": _stacked([item["inputs"] for item in items]), **rest, "ids": ids}
    except (RuntimeError, TypeError, ValueError, KeyError) as error:
        raise ArgumentTypeError(
            f"Expected samples of one kind, such as tensors or strings, but they cannot be put together: {error}."
        ) from error


def _stacked(values: list[Any]) -> Any:
    first = values[0]
    if isinstance(first, Mapping):
        return {key: _stacked([value[key] for value in values]) for key in first}
    if isinstance(first, Tensor):
        return torch.stack(values)
    if isinstance(first, bool) and all(value is first for value in values):
        return first  # an argument of the model that is the same for all
    numbers = first if isinstance(first, (list, tuple)) else [first]  # such as the ids of tokens
    return torch.tensor(values) if all(isinstance(one, Integral) for one in numbers) else values
