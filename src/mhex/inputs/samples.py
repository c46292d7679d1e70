"""A sample of the user's data, in small pieces, read only as far as it is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from mhex.errors import ArgumentError, ArgumentTypeError, some_of
from mhex.inputs.batching import Parts, check_lengths, cut, holds_batches, length, parts_of, raw_batches, taken
from mhex.inputs.masks import MaskReader, marked_words

# What metrics need beside inputs, and how items must look that have it.
FORMS: Mapping[str, tuple[str, str]] = {
    "label": ("a label", "(inputs, label) or {'inputs': ..., 'label': ...}"),
    "mask": ("a mask", "(image, label, mask) or {'image': ..., 'mask': ...}"),
    "rationale": ("a rationale", "{'text': ..., 'rationale': [numbers of the marked words, split at white space]}"),
    "other": ("another class", "{'image': ..., 'label': ..., 'other': another class that is in it, or -1}"),
    "tiles": ("the classes of the cells (tiles)", "{'image': ..., 'tiles': [class of each cell]}"),
}
ALL = ("label", "tiles")  # what every sample must have; one without the others does not count
_TOLD = 5  # samples that a sentence names
_LOOKED_AT = 1000  # samples among which one must have what is needed


@dataclass(frozen=True)
class Samples:
    """A batch of samples.

    Attributes:
        inputs: As for `mhex.explain`.
        ids: Number of each in the data set.
        label: Classes (B,), -1 where one is not known; None if none is.
        mask: Segmentations (H, W), each of its own size: 1 at the object, 0 elsewhere, -1 to be ignored; None where
            there is none.
        rationale: Of texts: numbers of the words that people marked, a sorted list for each; None if there is none.
        other: Another class that is in each image, (B,), -1 where there is none; None if not known.
        tiles: Of mosaics: the class of each cell, (B, n * n); see `mhex.metrics.grid_pointing_game`.
        names: Labels and other classes that were given by name, and have no number yet.
        items: Whether the batch was made here of single items.
    """

    inputs: Any
    ids: tuple[int, ...]
    label: Tensor | None = None
    mask: list[Tensor | None] | None = None
    rationale: list[list[int]] | None = None
    other: Tensor | None = None
    tiles: Tensor | None = None
    names: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    items: bool = False

    def has(self, name: str) -> bool:
        """Whether the data says it of at least one of these samples."""
        return name in self.names or getattr(self, name) is not None

    def check(self, name: str) -> None:
        """Refuse a sample without something that all must have."""
        value = getattr(self, name)
        lacking = self.ids if value is None else [i for i, one in zip(self.ids, value, strict=True) if (one < 0).any()]
        if lacking:
            raise ArgumentError(f"Expected {FORMS[name][0]} for each sample, but sample {lacking[0]} has none.")

    def only(self, places: Sequence[int]) -> Samples:
        """Those at some places of the batch."""
        names = ("inputs", "label", "mask", "rationale", "other", "tiles")
        parts = {name: taken(getattr(self, name), places) for name in names}
        classes = {name: taken(labels, places) for name, labels in self.names.items()}
        return replace(self, ids=tuple(self.ids[place] for place in places), names=classes, **parts)

    def numbered(self, numbers: Callable[[Sequence[int | str]], Tensor]) -> Samples:
        """The same with numbers in the place of class names.

        Args:
            numbers: From classes by name or number to their numbers.
        """
        found: dict[str, Any] = {}
        for name, given in self.names.items():
            known = [k for k, one in enumerate(given) if one is not None]
            found[name] = torch.full((len(given),), -1)
            found[name][known] = numbers([given[k] for k in known]).cpu()
        return replace(self, **found, names={}) if found else self


def in_samples(
    data: Any, size: int, limit: int | None = None, unread: dict[int, str] | None = None
) -> Iterator[Samples]:
    """Batches of samples, numbered in the order of the data.

    Args:
        data: A loader of batches; a data set, list or generator of items, or of batches; a tensor, tuple of tensors or
            dictionary, which is cut here. An item or batch is inputs alone, `(inputs, label)`,
            `(inputs, label, mask)`, or a dictionary with `inputs`, `image` or `text`, or the model's own arguments,
            and beside them `label`, `mask`, `rationale`, `other`.
        size: The most samples of a batch that is made here.
        limit: The most samples in all, counted with those that cannot be read.
        unread: Filled with the numbers of samples that cannot be read, and why; these are left out.
    """
    unread = {} if unread is None else unread
    for name, value in (("batch_size", size), ("limit", limit)):
        if (value is not None or name == "batch_size") and not _is_count(value):
            raise ArgumentError(f"Expected {name} to be a whole number from 1 on, but got {value!r}.")
    start, read = 0, MaskReader()
    for batch in raw_batches(data, size, limit, unread):
        check_lengths(batch)
        if limit is not None:
            batch = {name: cut(value, slice(0, limit - start)) for name, value in batch.items()}
        if length(batch["inputs"]):
            made = _samples(batch, start, read)
            yield made
            start = made.ids[-1] + 1
        if limit is not None and start >= limit:
            return
    if start == 0 and unread:
        reasons = losses_in_words(unread)
        raise ArgumentError(f"Expected samples that can be read, but none of {len(unread)} can: {reasons}.")
    if start == 0:
        raise ArgumentError("Expected at least one sample, but the data is empty; a generator can be read only once.")


def losses_in_words(lost: Mapping[int, str]) -> str:
    """Which samples were lost, and why, in a few words: the first of them, and how many more there are."""
    numbers: dict[str, list[str]] = {}
    for number, reason in sorted(lost.items()):
        numbers.setdefault(reason, []).append(str(number))
    parts = [
        f"{'sample' if len(several) == 1 else 'samples'} {some_of(several, _TOLD)}: {reason}"
        for reason, several in numbers.items()
    ]
    more = f"; and {len(parts) - _TOLD} more" if len(parts) > _TOLD else ""
    return "; ".join(parts[:_TOLD]) + more


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def look_for(name: str, who: str, held: list[Samples], rest: Iterator[Samples]) -> None:
    """Hold batches until one has what is needed; data without it is refused.

    Args:
        name: What is needed, a part of `Samples`.
        who: What needs it.
        held: The first batches, one at least; added to.
        rest: The others.
    """
    what, form = FORMS[name]
    while not any(samples.has(name) for samples in held):
        count = held[-1].ids[-1] + 1
        more = None if name in ALL or count >= _LOOKED_AT else next(rest, None)
        if more is None:
            lacking = "the data has none" if name in ALL else f"none of the first {count} samples has one"
            raise ArgumentError(f"{who} needs {what} for each sample, but {lacking}; give items as {form}.")
        held.append(more)


def _samples(batch: Parts, start: int, read: MaskReader) -> Samples:
    ids = tuple(batch.get("ids") or range(start, start + length(batch["inputs"])))
    masks = None if batch["mask"] is None else [read(*one) for one in zip(batch["mask"], ids, strict=True)]
    words = batch["rationale"]
    numbers: dict[str, Tensor] = {}
    names: dict[str, Sequence[Any]] = {}
    for name in ("label", "other"):
        found = None if batch[name] is None else _classes(batch[name], name)
        if isinstance(found, Tensor):
            numbers[name] = found
        elif found is not None:
            names[name] = found
    return Samples(
        batch["inputs"],
        ids,
        mask=None if masks is None or all(one is None for one in masks) else masks,
        rationale=_rationales(words, ids, batch["inputs"]),
        tiles=_tiles(batch["tiles"]),
        names=names,
        items=batch.get("ids") is not None,
        **numbers,
    )


def _rationales(given: Any, ids: tuple[int, ...], inputs: Any) -> list[list[int]] | None:
    """Numbers of marked words; where texts are strings, they are looked for in these."""
    if given is None or all(one is None for one in given):
        return None
    listed = isinstance(inputs, (list, tuple))
    texts = [one if isinstance(one, str) else None for one in inputs] if listed else [None] * len(ids)
    return [marked_words(one, f"sample {i}", text) for one, i, text in zip(given, ids, texts, strict=True)]


def _classes(given: Any, name: str) -> Tensor | list[Any] | None:
    """Numbers of classes (B,), -1 where there is none; or, where some are given by name, all as they were given."""
    if not isinstance(given, Tensor):
        given = [one.item() if hasattr(one, "ndim") and one.ndim == 0 else one for one in given]
        if all(one is None for one in given):
            return None
        if any(isinstance(one, str) for one in given):
            return list(given)
        wrong = [one for one in given if one is not None and not isinstance(one, (Integral, float))]
        huge = [one for one in given if isinstance(one, Integral) and not -(2**63) <= int(one) < 2**63]
        if huge:
            raise ArgumentError(f"Expected the number of a class as {name} of each sample, but got {huge[0]}.")
        if wrong:
            raise ArgumentTypeError(
                f"Expected a class number or name as {name} of each sample, but got {type(wrong[0]).__name__}; for "
                "several classes give one of them."
            )
        given = torch.tensor([-1 if one is None else one for one in given])
    given = given[:, 0] if given.dim() == 2 and given.shape[1] == 1 else given
    whole: Tensor = given.long()
    if given.dim() != 1 or not bool((whole == given).all()):
        raise ArgumentError(
            f"Expected one class number as {name} of each sample, but got {tuple(given.shape)} of {given.dtype}; turn "
            "shares and one-hot rows into numbers by argmax(1)."
        )
    return whole


def _tiles(given: Any) -> Tensor | None:
    if given is None or isinstance(given, Tensor):
        return given
    known = [one for one in given if one is not None]
    if known and len(known) < len(given):
        raise ArgumentError(
            f"Expected the classes of the cells (tiles) of every mosaic, but {len(given) - len(known)} have none."
        )
    try:
        return torch.tensor([torch.as_tensor(one).tolist() for one in known]) if known else None
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"Expected as many class numbers of cells (tiles) for every mosaic, but they are not so: {error}."
        ) from error


PIECE = 2  # images that are judged between two looks at the clock


def shuffled(data: Any, seed: int) -> tuple[Any, list[int] | None]:
    """The same samples in another order, where that can be had without reading them; else as they come.

    Args:
        data: As for `mhex.evaluate`. Tensors, dictionaries of columns and sequences of items are shuffled; loaders,
            generators and sequences of batches stay in their order.
        seed: Of the order.

    Returns:
        The samples, and the number in the data of each; None if they are as they come.
    """
    draw = torch.Generator().manual_seed(seed)
    if isinstance(data, (Tensor, Mapping)) or (isinstance(data, tuple) and data and isinstance(data[0], Tensor)):
        order = torch.randperm(length(parts_of(data)["inputs"]), generator=draw)
        return _ordered(data, order), order.tolist()
    if hasattr(data, "batch_size") or not hasattr(data, "__getitem__") or not hasattr(data, "__len__"):
        return data, None
    if isinstance(data, str) or holds_batches(data):
        return data, None
    places = torch.randperm(len(data), generator=draw).tolist()
    return _Shuffled(data, places), places


class _Shuffled:
    """Items of a data set in another order, each read when it is taken."""

    def __init__(self, data: Any, places: Sequence[int]) -> None:
        self._data, self._places = data, places

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, place: int) -> Any:
        return self._data[self._places[place]]


def _ordered(data: Any, order: Tensor) -> Any:
    if isinstance(data, Mapping):
        return {name: _ordered(value, order) for name, value in data.items()}
    if isinstance(data, tuple):
        return tuple(_ordered(value, order) for value in data)
    if isinstance(data, Tensor) and data.dim():
        return data[order.to(data.device)]
    return [data[place] for place in order.tolist()] if isinstance(data, list) else data


class Pieces:
    """Samples in pieces: one image first, by which costs are learnt, and then a few at a time.

    Args:
        data: As for `mhex.evaluate`.
        limit: The most images.
        order: Number of each sample in the data, if they were shuffled.

    Attributes:
        unread: Samples that cannot be read, and why, by their place in the race.
    """

    def __init__(self, data: Any, limit: int | None = None, order: Sequence[int] | None = None) -> None:
        self.order = order
        self.unread: dict[int, str] = {}
        self._rest: Iterator[Samples] = self._cut(in_samples(data, PIECE, limit, self.unread))
        self._held: list[Samples] = []

    def change(self, how: Callable[[Samples], Samples]) -> None:
        """Change all pieces, those that were read and those to come."""
        self._held, self._rest = list(map(how, self._held)), map(how, self._rest)

    def get(self, place: int) -> Samples | None:
        """A piece by its number; None behind the last."""
        while len(self._held) <= place:
            found = next(self._rest, None)
            if found is None:
                return None
            self._held.append(found)
        return self._held[place]

    def put(self, samples: Samples | None) -> None:
        """Set the first piece; None to take it out."""
        self._held[:1] = [] if samples is None else [samples]

    @staticmethod
    def _cut(batches: Iterator[Samples]) -> Iterator[Samples]:
        first = True
        for batch in batches:
            starts = [0, *range(1 if first else PIECE, len(batch.ids), PIECE), len(batch.ids)]
            first = False
            for start, stop in pairwise(starts):
                if start < stop:
                    yield _part(batch, slice(start, stop))


def _part(samples: Samples, part: slice) -> Samples:
    """Some of the samples of a batch."""
    names = [field.name for field in fields(Samples) if field.name not in ("names", "ids", "items")]
    found = {name: cut(getattr(samples, name), part) for name in names}
    return replace(samples, ids=samples.ids[part], names={k: v[part] for k, v in samples.names.items()}, **found)
