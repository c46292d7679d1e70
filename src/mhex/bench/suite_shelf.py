"""Models and data that several suites share, each loaded once."""

from __future__ import annotations

from mhex.bench.suite import DataPart
from mhex.bundle import Bundle
from mhex.data import data_entry
from mhex.data.items import Items
from mhex.data.two_class import two_class_items
from mhex.errors import ArgumentError, MhexError
from mhex.zoo.names import load
from mhex.zoo.residents import list_models


class Shelf:
    """What was loaded so far; it stays until the shelf goes."""

    def __init__(self) -> None:
        self._bundles: dict[str, Bundle] = {}
        self._items: dict[tuple[DataPart, int], Items] = {}

    def bundle(self, name: str, source: str) -> Bundle:
        """A model.

        Args:
            name: As for `mhex.load`.
            source: Name of the suite, for messages.

        Raises:
            ArgumentError: It cannot be loaded; the sentence says how to make it where there is a recipe.
        """
        if name not in self._bundles:
            self._bundles[name] = _load(name, source)
        return self._bundles[name]

    def items(self, part: DataPart, seed: int) -> Items:
        """Samples.

        Args:
            part: Which.
            seed: Of pictures of two classes.

        Raises:
            DataMissingError: A file is missing; the message says what to place where.
        """
        own = (part, 0 if part.form == "single" else seed)
        if own not in self._items:
            self._items[own] = _items(part, seed)
        return self._items[own]


def _load(name: str, source: str) -> Bundle:
    try:
        return load(name)
    except MhexError as error:
        from mhex.train.build import buildable

        bare = name.removeprefix("zoo:")
        if bare != name and bare in buildable() and f"zoo:{bare}" not in [row["name"] for row in list_models()]:
            raise ArgumentError(f"{source}: {name} is not here; train it with `mhex models build {bare}`.") from error
        raise ArgumentError(f"{source}: {name}: {error}") from error


def _items(part: DataPart, seed: int) -> Items:
    data = data_entry(part.name)
    if part.form == "single":
        return data.items(part.split, limit=part.limit, **part.options)
    return two_class_items(data.load(part.split or data.test, **part.options), part.form, limit=part.limit, seed=seed)
