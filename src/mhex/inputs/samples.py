"""Samples of the user's data, with ids, labels, masks and rationales, read only as far as they are needed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from numbers import Integral
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils.data import Subset

from mhex._settings import check_count, check_that
from mhex.errors import ArgumentError, ArgumentTypeError, some_of
from mhex.inputs.data import BESIDE, Parts, holds_batches, is_sequence, length, parts_of, raw_batches, select
from mhex.inputs.masks import MaskReader, marked_words
from mhex.inputs.parts import FORM, InputParts, read_parts

# What metrics need beside inputs, and how items must look that have it.
FORMS: Mapping[str, tuple[str, str]] = {
    "label": ("a label", "(inputs, label) or {'inputs': ..., 'label': ...}"),
    "mask": ("a mask", "(image, label, mask) or {'image': ..., 'mask': ...}"),
    "rationale": ("a rationale", "{'text': ..., 'rationale': [numbers of the marked words, split at white space]}"),
    "other": ("another class", "{'image': ..., 'label': ..., 'other': another class that is in it, or -1}"),
    "tiles": ("the classes of the cells (tiles)", "{'image': ..., 'tiles': [class of each cell]}"),
    "parts": ("parts that can be taken away", FORM),
}
ALL = ("label", "tiles")  # what every sample must have; one without the others does not count
PIECE = 2  # images that are judged between two looks at the clock
_MOST_NAMED = 5  # samples that a sentence names
_MOST_SEARCHED = 1000  # samples among which one must have what is needed


class ClassLabel(int):
    """The number of a class in a data set, with the names of all classes of the set, by which a model may know it."""

    classes: tuple[str, ...]

    def __new__(cls, number: int, classes: tuple[str, ...] = ()) -> Self:
        label = super().__new__(cls, number)
        label.classes = classes
        return label


@dataclass(frozen=True)
class Samples:
    """A batch of samples; what the data does not say of any of them is None."""

    inputs: Any  # as for `mhex.explain`
    ids: tuple[int, ...]  # number of each in the data set
    label: Tensor | None = None  # classes (B,), -1 where one is not known
    mask: list[Tensor | None] | None = None  # (H, W), of any size: 1 at the object, 0 elsewhere, -1 to be ignored
    rationale: list[list[int]] | None = None  # of texts: numbers of the words that people marked, sorted
    other: Tensor | None = None  # another class that is in each image, (B,), -1 where there is none
    tiles: Tensor | None = None  # of mosaics: the class of each cell, (B, n * n); see the metric grid-pointing-game
    parts: list[InputParts | None] | None = None  # what can be taken away from each, and the inputs without it
    names: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # labels and others, maybe by name, no number yet
    items: bool = False  # the batch was made here of single items

    def has(self, name: str) -> bool:
        """Whether the data says it of at least one of these samples."""
        return name in self.names or getattr(self, name) is not None

    def check(self, name: str) -> None:
        """Refuse a sample without something that all must have."""
        value = getattr(self, name)
        lacking = self.ids if value is None else [i for i, row in zip(self.ids, value, strict=True) if (row < 0).any()]
        if lacking:
            raise ArgumentError(f"Expected {FORMS[name][0]} for each sample, but sample {lacking[0]} has none.")

    def only(self, places: slice | Sequence[int]) -> Samples:
        """The samples at some places of the batch."""
        parts = {name: select(getattr(self, name), places, len(self.ids)) for name in ("inputs", *BESIDE)}
        return replace(self, ids=tuple(select(self.ids, places)), names=select(self.names, places), **parts)

    def numbered(self, numbers: Callable[[Sequence[int | str]], Tensor]) -> Samples:
        """The same with numbers in the place of class names; `numbers` goes from names or numbers to numbers."""
        columns: dict[str, Any] = {}
        for name, classes in self.names.items():
            places = [place for place, label in enumerate(classes) if label is not None]
            columns[name] = torch.full((len(classes),), -1)
            columns[name][places] = numbers([classes[place] for place in places]).cpu()
        return replace(self, **columns, names={}) if columns else self


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
    check_count("batch_size", size)
    check_count("limit", limit, or_none=True, most=math.inf)
    start, any_read, read = 0, False, MaskReader()
    for batch in raw_batches(data, size, limit, unread):
        if limit is not None:
            count = length(batch["inputs"])
            batch = {name: select(value, slice(0, limit - start), count) for name, value in batch.items()}
        if length(batch["inputs"]):
            samples = _samples(batch, start, read)
            start = samples.ids[-1] + 1
            any_read = True
            yield samples
        if limit is not None and start >= limit:
            break
    if not any_read and unread:
        reasons = losses_in_words(unread)
        raise ArgumentError(f"Expected samples that can be read, but none of {len(unread)} can: {reasons}.")
    check_that(start > 0, "at least one sample", "empty data", "; a generator can be read only once")


def losses_in_words(lost: Mapping[int, str]) -> str:
    """Which samples were lost, and why, in a few words: the first of them, and how many more there are."""
    numbers: dict[str, list[str]] = {}
    for number, reason in sorted(lost.items()):
        numbers.setdefault(reason, []).append(str(number))
    parts = [
        f"{'sample' if len(several) == 1 else 'samples'} {some_of(several, _MOST_NAMED)}: {reason}"
        for reason, several in numbers.items()
    ]
    more = f"; and {len(parts) - _MOST_NAMED} more" if len(parts) > _MOST_NAMED else ""
    return "; ".join(parts[:_MOST_NAMED]) + more


def look_for(name: str, reader: str, batches: list[Samples], following: Iterator[Samples]) -> None:
    """Move batches from those that follow to those read until one has what the reader needs; else refuse the data.

    `name` is what is needed, a part of `Samples`. At least one batch was read already.
    """
    noun, form = FORMS[name]
    while not any(samples.has(name) for samples in batches):
        count = batches[-1].ids[-1] + 1
        samples = None if name in ALL or count >= _MOST_SEARCHED else next(following, None)
        if samples is None:
            lacking = "the data has none" if name in ALL else f"none of the first {count} samples has one"
            raise ArgumentError(f"{reader} needs {noun} for each sample, but {lacking}; give items as {form}.")
        batches.append(samples)


def _samples(batch: Parts, start: int, read: MaskReader) -> Samples:
    ids = tuple(batch.get("ids") or range(start, start + length(batch["inputs"])))
    masks = None if batch["mask"] is None else [read(*pair) for pair in zip(batch["mask"], ids, strict=True)]
    classes = {name: _classes(batch[name], name) for name in ("label", "other") if batch[name] is not None}
    return Samples(
        batch["inputs"],
        ids,
        mask=None if masks is None or all(mask is None for mask in masks) else masks,
        rationale=_rationales(batch["rationale"], ids, batch["inputs"]),
        tiles=_tiles(batch["tiles"]),
        parts=_parts(batch["parts"], ids),
        names={name: column for name, column in classes.items() if isinstance(column, list)},
        items=batch.get("ids") is not None,
        **{name: column for name, column in classes.items() if isinstance(column, Tensor)},
    )


def _rationales(rationales: Any, ids: tuple[int, ...], inputs: Any) -> list[list[int]] | None:
    """Numbers of marked words; where texts are strings, they are looked for in these."""
    if rationales is None or all(words is None for words in rationales):
        return None
    values = inputs if isinstance(inputs, (list, tuple)) else [None] * len(ids)
    texts = [text if isinstance(text, str) else None for text in values]
    return [marked_words(words, f"sample {i}", text) for words, i, text in zip(rationales, ids, texts, strict=True)]


def _classes(column: Any, name: str) -> Tensor | list[Any] | None:
    """Numbers of classes (B,), -1 where there is none; or, where some are given by name, all as they were given."""
    if not isinstance(column, Tensor):
        column = [label.item() if hasattr(label, "ndim") and label.ndim == 0 else label for label in column]
        if all(label is None for label in column):
            return None
        if any(isinstance(label, (str, ClassLabel)) for label in column):
            return list(column)
        for label in column:
            if isinstance(label, Integral) and not -(2**63) <= int(label) < 2**63:
                raise ArgumentError(f"Expected the number of a class as {name} of each sample, but got {label}.")
            if label is not None and not isinstance(label, (Integral, float)):
                kind = type(label).__name__
                raise ArgumentTypeError(f"Expected one class number or name as {name} of each sample, but got {kind}.")
        column = torch.tensor([-1 if label is None else label for label in column])
    column = column[:, 0] if column.dim() == 2 and column.shape[1] == 1 else column
    numbers: Tensor = column.long()
    right, actual = column.dim() == 1 and bool((numbers == column).all()), f"{tuple(column.shape)} of {column.dtype}"
    advice = "; turn shares and one-hot rows into numbers by argmax(1)"
    check_that(right, f"one class number as {name} of each sample", actual, advice)
    return numbers


def _tiles(column: Any) -> Tensor | None:
    if column is None or isinstance(column, Tensor):
        return column
    if all(row is None for row in column):
        return None
    try:
        return torch.tensor([torch.as_tensor(row).tolist() for row in column])
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentError(f"Expected as many cells (tiles) with a class in every mosaic: {error}.") from error


def _parts(column: Any, ids: tuple[int, ...]) -> list[InputParts | None] | None:
    if column is None:
        return None
    parts = [read_parts(value, number) for value, number in zip(column, ids, strict=True)]
    return None if all(value is None for value in parts) else parts


def shuffled(data: Any, seed: int) -> tuple[Any, list[int] | None]:
    """Samples, as for `mhex.evaluate`, in another order, and the number of each in the data.

    Tensors, dictionaries of columns and sequences of items are shuffled; loaders, generators and sequences of batches
    stay in their order, with None for the numbers.
    """
    draw = torch.Generator().manual_seed(seed % 2**63)
    if isinstance(data, (Tensor, Mapping)) or (isinstance(data, tuple) and data and isinstance(data[0], Tensor)):
        count = length(parts_of(data)["inputs"])
        order = torch.randperm(count, generator=draw).tolist()
        parts = data if isinstance(data, tuple) else (data,)
        mixed = tuple(select(part, order, count) for part in parts)
        return mixed if isinstance(data, tuple) else mixed[0], order
    if isinstance(data, str) or not is_sequence(data) or holds_batches(data):
        return data, None
    order = torch.randperm(len(data), generator=draw).tolist()
    return Subset(data, order), order


class Pieces:
    """Samples in pieces: one image first, by which costs are learnt, and then a few at a time."""

    def __init__(self, data: Any, limit: int | None = None, order: Sequence[int] | None = None) -> None:
        self.order = order  # number of each sample in the data, if they were shuffled
        self.unread: dict[int, str] = {}  # samples that cannot be read, and why, by their place in the race
        self._following: Iterator[Samples] = self._cut(in_samples(data, PIECE, limit, self.unread))
        self._pieces: list[Samples] = []

    def change(self, how: Callable[[Samples], Samples]) -> None:
        """Change all pieces, those that were read and those to come."""
        self._pieces, self._following = list(map(how, self._pieces)), map(how, self._following)

    def get(self, place: int) -> Samples | None:
        """A piece by its number; None behind the last."""
        while len(self._pieces) <= place:
            samples = next(self._following, None)
            if samples is None:
                return None
            self._pieces.append(samples)
        return self._pieces[place]

    def leading(self) -> Iterator[Samples]:
        """The first piece; and where another is asked for, the next one, after the first was taken out."""
        while (first := self.get(0)) is not None:
            yield first
            self.put(None)

    def put(self, samples: Samples | None) -> None:
        """Set the first piece; None to take it out."""
        self._pieces[:1] = [] if samples is None else [samples]

    @staticmethod
    def _cut(batches: Iterator[Samples]) -> Iterator[Samples]:
        first = 1
        for batch in batches:
            starts = [0, *range(first, len(batch.ids), PIECE), len(batch.ids)]
            first = PIECE
            yield from (batch.only(slice(start, stop)) for start, stop in pairwise(starts))
