"""Data in any form (tensors, columns, items, batches, loaders, streams), and the one reader of these forms.

`raw_batches` serves `mhex.inputs.samples`; `in_batches` gives plain batches, and `labelled` those with labels.
"""

import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from itertools import chain, groupby, islice
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mhex._progress import track
from mhex._settings import check_that
from mhex.errors import ArgumentError, ArgumentTypeError, MhexError
from mhex.inputs.photos import is_photo
from mhex.inputs.prepared import check_dense

BESIDE = ("label", "mask", "rationale", "other", "tiles", "parts")  # what data may say of a sample
_INPUTS = ("inputs", "image", "images", "text", "texts")
_PLURAL = {"label": "labels", "mask": "masks"}
_LABELS = ("labels", "label")
_AXES = {"pixel_values": 4, "input_ids": 2, "inputs_embeds": 3}  # of a batch of the model's own arguments
# What reading a damaged or missing file raises: PIL, the system, and our own data sets.
_UNREADABLE = (OSError, SyntaxError, EOFError, struct.error, zlib.error, MhexError)
Parts = dict[str, Any]
CheckLabels = Callable[[Tensor, int], Tensor]  # from labels and the number of samples to labels that losses take


def is_sequence(data: Any) -> bool:
    """Whether items or batches can be taken by number, as of a list or a data set, and not of a loader."""
    return hasattr(data, "__getitem__") and hasattr(data, "__len__") and not hasattr(data, "batch_size")


def is_columns(data: Any) -> bool:
    """True of a tensor, a dictionary, and a tuple of a batch of inputs and what is known of them."""
    if isinstance(data, (Tensor, Mapping)):
        return True
    if not isinstance(data, tuple) or not data:
        return False
    if isinstance(data[0], list):
        kinds = {str if isinstance(sample, str) else is_photo(sample) for sample in data[0]}
        return len(data) in (2, 3) and kinds in ({str}, {True}) and (data[1] is None or _is_column(data[1]))
    return isinstance(data[0], Tensor) and is_batch(data[0])


def is_batch(element: Any) -> bool:
    """True of a batch, False of a single item."""
    inputs = parts_of(element)["inputs"]
    if isinstance(inputs, Mapping):
        return next((_axes(inputs[key]) >= axes for key, axes in _AXES.items() if key in inputs), True)
    if isinstance(inputs, (Tensor, np.ndarray)):
        floating = inputs.is_floating_point() if isinstance(inputs, Tensor) else inputs.dtype.kind == "f"
        return inputs.ndim > 3 or (not floating and inputs.ndim == 2)
    return isinstance(inputs, (list, tuple))


def holds_batches(data: Any) -> bool:
    """Whether a sequence holds batches, as the first element of it that can be read shows."""
    first = next(readable(data, {}), None)
    return first is not None and is_batch(first[1])


def parts_of(element: Any) -> Parts:
    """An item or a batch as `inputs`, and what the data says of them: None where it says nothing."""
    parts: Parts = {"inputs": element, **dict.fromkeys(BESIDE)}
    if isinstance(element, Mapping):
        plurals = {name: _PLURAL.get(name, name) for name in BESIDE}
        parts.update({name: element.get(name, element.get(plural)) for name, plural in plurals.items()})
        key = next((key for key in _INPUTS if key in element), None)
        arguments = {k: v for k, v in element.items() if k not in plurals and k not in plurals.values()}
        if key is None and not any(name in arguments for name in _AXES):
            keys = ", ".join((*_INPUTS, *_AXES))
            raise ArgumentError(f"Expected inputs under one of the keys {keys}, but got {list(element)}; rename one.")
        parts["inputs"] = arguments if key is None else element[key]
    elif isinstance(element, (tuple, list)) and _is_labelled(element):
        parts.update(zip(("inputs", "label", "mask"), element, strict=False))
    return parts


def length(inputs: Any) -> int:
    """Number of samples of a batch."""
    if isinstance(inputs, Mapping):
        return max((len(value) for value in inputs.values() if _is_column(value)), default=0)
    if not isinstance(inputs, Sized) or (isinstance(inputs, (Tensor, np.ndarray)) and not inputs.ndim):
        raise ArgumentTypeError(f"Expected a batch of inputs, but got {type(inputs).__name__}.")
    return len(inputs)


def select(value: Any, places: slice | Sequence[int] | Tensor, count: int | None = None) -> Any:
    """Some samples of a tensor, an array, a list, or a dictionary of these; None stays None.

    Values of a dictionary that have no rows are shared by all samples and passed on, and so are those with another
    number of rows than `count`, the number of samples, where it is given.
    """
    if isinstance(value, Mapping):
        return {
            name: select(rows, places, count)
            if isinstance(rows, Mapping) or (_is_column(rows) and count in (None, len(rows)))
            else rows
            for name, rows in value.items()
        }
    if value is None:
        return None
    if isinstance(places, slice):
        return value[places]
    if isinstance(value, (Tensor, np.ndarray)):
        return value[places if isinstance(places, Tensor) else list(places)]
    return [value[place] for place in places]


def readable(data: Any, unread: dict[int, str], limit: int | None = None) -> Iterator[tuple[int, Any]]:
    """The first items of a sequence with their places; `unread` is filled with those that cannot be read, and why."""
    for place in range(len(data))[:limit]:
        try:
            element = data[place]
            values = element if isinstance(element, (tuple, list)) else [element]
            for value in element.values() if isinstance(element, Mapping) else values:
                if is_photo(value):
                    _load(value)
        except _UNREADABLE as error:
            unread[place] = " ".join(str(error).split()).rstrip(".") or type(error).__name__
            continue
        yield place, element


def raw_batches(data: Any, size: int, limit: int | None, unread: dict[int, str]) -> Iterator[Parts]:
    """Batches, each a dictionary of `inputs` and what is known beside them, None where nothing is.

    The data, and the most samples of a batch that is made here, are as for `mhex.inputs.samples.in_samples`. No more
    items are read than the limit. Those of a list or data set that cannot be read are left out, and `unread` is filled
    with their places and the reason. A loader or generator ends with its first error, so that such an error is raised.
    """
    if is_columns(data):
        parts = _checked_parts(data)
        count = length(parts["inputs"])
        for cut in _cuts(parts["inputs"], size):
            yield {name: select(value, cut, count) for name, value in parts.items()}
        return
    _check_several(data)
    elements = readable(data, unread, limit) if is_sequence(data) else enumerate(islice(data, limit))
    first = next(elements, None)
    if first is None:
        return
    elements = chain([first], elements)
    if not is_batch(first[1]):
        yield from _gathered(({**parts_of(item), "place": place} for place, item in elements), size)
        return
    for _, batch in elements:
        _check_batches(unread)
        yield from _even(_checked_parts(batch))
    _check_batches(unread)


def count_samples(data: Any, items: bool, limit: int | None = None) -> int | None:
    """How many samples there are; None if that is not known before they are read. `items`: single ones, no batches."""
    if not is_columns(data) and not (items and hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        return None
    count = length(parts_of(data)["inputs"]) if is_columns(data) else len(data)
    return count if limit is None else min(count, limit)


def count_batches(data: Any, size: int, limit: int | None = None) -> int | None:
    """About how many batches there will be; None if that is not known."""
    if not isinstance(data, Sized):
        return None
    try:
        count = length(parts_of(data)["inputs"]) if is_columns(data) else len(data)
    except TypeError:  # a loader of a stream
        return None
    if hasattr(data, "batch_size"):  # a loader
        return count if limit is None or not data.batch_size else min(count, -(-limit // data.batch_size))
    if isinstance(data, (list, tuple)) and data and not is_columns(data) and is_batch(data[0]):
        return count
    return -(-(count if limit is None else min(count, limit)) // size)


def _checked_parts(batch: Any) -> Parts:
    """Parts of a batch; more or fewer labels, masks or arguments than inputs are refused, and tensors not dense."""
    # An argument of the model with a single row, such as position numbers (1, T), is shared by all samples.
    parts = _dense(parts_of(batch))
    count = length(parts["inputs"])
    arguments = parts["inputs"].items() if isinstance(parts["inputs"], Mapping) else ()
    for name, value in (*((name, parts[name]) for name in BESIDE), *arguments):
        if value is None or (name not in BESIDE and (not _is_column(value) or len(value) == 1)):
            continue
        if not _is_column(value) or len(value) != count:
            came = len(value) if _is_column(value) else f"1 {type(value).__name__}"
            raise ArgumentError(f"Expected a {name} for each of {count} samples, but got {came}.")
    return parts


def in_batches(inputs: Any, size: int) -> Iterator[Any]:
    """What `mhex.explain` takes, of any length, in pieces of at most `size` samples.

    Batches of a loader are given as they come, without labels: alone, first in tuples, or in dictionaries.
    """
    if isinstance(inputs, (Tensor, Mapping, list, tuple)):
        yield from (select(inputs, cut, length(inputs)) for cut in _cuts(inputs, size))
    elif isinstance(inputs, Iterable) and not isinstance(inputs, str):
        yield from unlabelled(inputs)
    else:
        yield inputs


def unlabelled(data: Any) -> Iterator[Any]:
    """Inputs without labels: of one tensor or dictionary, or of a loader of these, alone or first in tuples."""
    for batch in [data] if isinstance(data, (Tensor, Mapping)) else _check_several(data):
        inputs = batch[0] if isinstance(batch, (tuple, list)) and batch else batch
        yield {k: v for k, v in inputs.items() if k not in _LABELS} if isinstance(inputs, Mapping) else inputs


def labelled(loader: Any) -> Iterator[tuple[Any, Tensor]]:
    """Inputs and labels of a loader of pairs, or of dictionaries with `labels` (or `label`) among the arguments."""
    for batch in loader:
        if isinstance(batch, (tuple, list)) and len(batch) == 2:
            inputs, labels = batch
        elif isinstance(batch, Mapping) and (names := [name for name in _LABELS if name in batch]):
            inputs, labels = {k: v for k, v in batch.items() if k != names[0]}, batch[names[0]]
        else:
            words = "Expected batches (inputs, labels), or dictionaries with 'labels'"
            raise ArgumentTypeError(f"{words}, but got {type(batch).__name__}.")
        yield inputs, torch.as_tensor(labels)


def loader_of(data: Any, batch_size: int) -> Any:
    """A loader as it is; a pair of inputs (a tensor, or a dictionary of tensors) and labels, cut into batches."""
    inputs, labels = data if isinstance(data, (tuple, list)) and len(data) == 2 else (None, None)
    if not isinstance(inputs, (Tensor, Mapping)) or not isinstance(labels, Tensor):
        return _check_several(data)
    check_that(labels.dim() > 0, "one label per sample, (B,)", "a single number", "; add a batch axis")
    lengths = sorted(set(_row_counts(inputs)))
    came = " or ".join(map(str, lengths)) or "no"
    check_that(lengths == [len(labels)], "as many labels as inputs", f"{len(labels)} labels and {came} inputs")
    return _pieces(inputs, labels, batch_size)


def labelled_pieces(
    inputs: Any, labels: Tensor | None, check: CheckLabels, size: int, progress: bool = False
) -> Iterator[tuple[Any, Tensor]]:
    """Inputs and checked labels of at most `size` samples at a time.

    The inputs are a batch (a tensor, or a dictionary of arguments) with its labels beside it or in the dictionary; or a
    loader of labelled batches, or one pair of tensors `(inputs, labels)`.
    """
    if isinstance(inputs, (Tensor, Mapping)):
        yield from track(_pieces(*labelled_batch(inputs, labels, check), size), "Collaboration", progress)
        return
    inside = f" of {type(inputs[0]).__name__}" if isinstance(inputs, (list, tuple)) and inputs else ""
    actual, advice = f"{type(inputs).__name__}{inside}", ": turn images and texts into tensors; a loader brings its own"
    check_that(labels is None, "a tensor or a dictionary of arguments beside labels", actual, advice)
    for batch, truth in labelled(track(loader_of(inputs, size), "Collaboration", progress)):
        yield from _pieces(batch, _checked_labels(batch, truth, check), size)


def labelled_batch(inputs: Any, labels: Tensor | None, check: CheckLabels) -> tuple[Any, Tensor]:
    """A batch without labels among its inputs, and its checked labels; see `labelled_pieces`."""
    if labels is None and isinstance(inputs, Mapping) and any(name in inputs for name in _LABELS):
        inputs, labels = next(labelled([inputs]))
    if labels is None:
        raise ArgumentError("Expected labels beside a batch: each head has a loss only if the true class is known.")
    return inputs, _checked_labels(inputs, labels, check)


def _checked_labels(inputs: Any, labels: Tensor, check: CheckLabels) -> Tensor:
    counts = _row_counts(inputs)
    check_that(bool(counts) and 0 not in counts, "at least one sample", "an empty batch")
    # A dictionary may hold tensors that all samples share, for instance position numbers (1, T).
    rows = labels.shape[0] if isinstance(labels, Tensor) and labels.dim() else counts[0]
    return check(labels, rows if rows in counts else counts[0])


def _pieces(inputs: Any, labels: Tensor, size: int) -> list[tuple[Any, Tensor]]:
    """A batch with its labels in pieces, which are views of its tensors."""
    return [(select(inputs, cut, len(labels)), labels[cut]) for cut in _cuts(labels, size)]


def _cuts(inputs: Any, size: int) -> list[slice]:
    return [slice(start, start + size) for start in range(0, length(inputs), size)]


def _row_counts(inputs: Any) -> list[int]:
    values = [inputs] if isinstance(inputs, Tensor) else inputs.values() if isinstance(inputs, Mapping) else []
    return [value.shape[0] for value in values if isinstance(value, Tensor) and value.dim()]


def _check_several(data: Any) -> Any:
    """Data of several samples or batches; anything else is refused."""
    if isinstance(data, (str, bytes)) or not (hasattr(data, "__iter__") or hasattr(data, "__getitem__")):
        kinds = "a tensor, a dictionary, a list, a data set, a generator or a loader"
        raise ArgumentTypeError(f"Expected {kinds}, but got {type(data).__name__}.")
    return data


def _axes(value: Any) -> int:
    return value.ndim if hasattr(value, "ndim") else 1 + _axes(value[0]) if isinstance(value, list) and value else 0


def _is_column(value: Any) -> bool:
    return isinstance(value, (list, tuple)) or (isinstance(value, (Tensor, np.ndarray)) and value.ndim > 0)


def _is_labelled(element: tuple[Any, ...] | list[Any]) -> bool:
    """True of `(inputs, label)` and `(inputs, label, mask)`, and not of a list of photos, strings or tensors."""
    if len(element) not in (2, 3):
        return False
    first, second = element[:2]
    if isinstance(first, str):  # texts in a list; or a text and the name of its class, in a tuple
        return not isinstance(second, str) or isinstance(element, tuple)
    return second.ndim < 3 if isinstance(second, Tensor) else not is_photo(second)


def _load(photo: Any) -> None:
    """Read a PIL image now: PIL reads a file when it is needed, and finds out then that it is damaged or closed."""
    try:
        photo.load()
    except ValueError as error:
        raise ArgumentError(f"the photo cannot be read ({error})") from error


def _check_batches(unread: Mapping[int, str]) -> None:
    """Refuse a batch that cannot be read: nobody knows how many samples it has."""
    for place, reason in unread.items():
        raise ArgumentError(f"Expected batches that can be read, but batch {place} cannot: {reason}.")


def _dense(parts: Parts) -> Parts:
    """The same parts; tensors that are not dense are refused."""
    for name, value in parts.items():
        for part in value.values() if isinstance(value, Mapping) else [value]:
            if isinstance(part, Tensor):
                check_dense(part, name)
    return parts


def _even(batch: Parts) -> Iterator[Parts]:
    """A batch as it is, but for images in a list, which are stacked as far as their sizes are the same."""
    inputs = batch["inputs"]
    if not isinstance(inputs, (list, tuple)) or not inputs or not all(isinstance(image, Tensor) for image in inputs):
        yield batch
        return
    rows = ({name: None if value is None else value[n] for name, value in batch.items()} for n in range(len(inputs)))
    yield from _gathered(rows, len(inputs))


def _gathered(items: Iterable[Parts], size: int) -> Iterator[Parts]:
    """Items in batches; an item whose tensors have another shape begins a new batch."""
    for _, alike in groupby(map(_dense, items), key=lambda parts: _shapes(parts["inputs"])):
        while batch := list(islice(alike, size)):
            yield _joined(batch)


def _shapes(inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        return {key: _shapes(value) for key, value in inputs.items()}
    if isinstance(inputs, Tensor):
        return tuple(inputs.shape)
    return len(inputs) if isinstance(inputs, (list, tuple)) else None


def _joined(items: list[Parts]) -> Parts:
    """A batch of items: inputs stacked, and what is known of them as lists."""
    beside = {name: [item[name] for item in items] for name in BESIDE}
    ids = [item["place"] for item in items] if "place" in items[0] else None
    try:
        return {"inputs": _stacked([item["inputs"] for item in items]), **beside, "ids": ids}
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
    return torch.tensor(values) if all(isinstance(number, Integral) for number in numbers) else values
