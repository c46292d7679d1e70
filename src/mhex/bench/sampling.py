"""A sample of the user's data, in small pieces, read only as far as it is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from mhex.bench.batching import cut, holds_batches, length, parts_of
from mhex.bench.samples import Samples, in_samples

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
