"""The catalogue of data sets: each file of this folder registers its own, with what a model card must say about it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from mhex.errors import ArgumentError, unknown_name
from mhex.lab.datasets.files import data_folder
from mhex.lab.datasets.personal import is_text, load_csv, load_folder
from mhex.lab.datasets.sets import Items, PhotoSet, TextSet
from mhex.lab.datasets.source import Source

AnySet = PhotoSet | TextSet  # the sets with one class for each sample, which a recipe can learn from
Task = Literal["classes", "ordered classes", "several classes", "pixels", "values", "nodes"]
Loader = TypeVar("Loader", bound=Callable[..., Any])


@dataclass(frozen=True)
class DataEntry:
    """A data set by name."""

    # From a split and a keyword `limit` to the set: an `AnySet`, where the task is one of classes or ordered classes;
    # else a `PhotoSet`, a `SegmentationSet` or a `ValueSet`.
    load: Callable[..., Any]
    title: str  # its full name
    licence: str
    citation: str  # the publication to cite
    form: str  # in which form the file holds it
    files: str  # what to place in the data folder
    source: Source | None = None  # how to get it
    kind: Literal["image", "text"] = "image"
    task: Task = "classes"  # what is known of each sample
    train: str | None = "train"  # split to learn from; None where all of it is for judging
    validation: str | None = "val"  # split to choose by; None where there is none
    test: str = "test"  # split to judge by
    answers: str = "class"  # what a class is, in one word
    group_answers: str = "group"  # what a group of classes is
    load_options: Mapping[str, Any] = field(default_factory=dict)  # of `load`, for masks and the like
    item_options: Mapping[str, Any] = field(default_factory=dict)  # of `items` of the set
    judged: str = ""  # what explanations can be judged by: masks, rationales, two classes

    @property
    def learnable(self) -> bool:
        """Whether a recipe can train a classifier on it."""
        return self.train is not None and self.task in ("classes", "ordered classes")

    def items(self, split: str | None = None, *, limit: int | None = None, **options: Any) -> Items:
        """Samples for `mhex.evaluate`, with masks or rationales where the set has them.

        Args:
            split: By default the split to judge by.
            limit: At most so many samples, evenly spaced over the split.
            **options: For the loader, such as ``side``.
        """
        loaded = self.load(split or self.test, limit=limit, **{**self.load_options, **options})
        items: Items = loaded.items(**self.item_options)
        if not len(items):
            raise ArgumentError(f"Nothing of {self.title} is left to be judged on: take more of it than {limit}.")
        return items


CATALOGUE: dict[str, DataEntry] = {}
_VARIANTS: dict[str, DataEntry] = {}  # names that load and are not listed


def register_data(name: str, *, listed: bool = True, **facts: Any) -> Callable[[Loader], Loader]:
    """Register the decorated loader as data set `name` with the fields of `DataEntry`; variants are not listed."""

    def decorate(load: Loader) -> Loader:
        (CATALOGUE if listed else _VARIANTS)[name] = DataEntry(load, **facts)
        return load

    return decorate


def data_entry(name: str) -> DataEntry:
    """The entry of a data set; an unknown name is refused with near names.

    Args:
        name: A name of the catalogue; or ``NAME_64``, ``NAME_128``, ``NAME_224`` of a MedMNIST collection; or
            ``folder:PATH`` or ``csv:PATH`` of the user's data with splits train and test, in the data folder unless
            the path is absolute.
    """
    kind, _, path = name.partition(":")
    if path and kind in ("folder", "csv"):
        place = Path(path).expanduser()
        place = place if place.is_absolute() else data_folder() / place
        return DataEntry(
            partial(load_folder if kind == "folder" else load_csv, place),
            title=f"own data in {place.name}",
            licence="none named",
            citation="none",
            form="as it was given",
            files=f"`{place.name}`",
            kind="text" if kind == "csv" and is_text(place) else "image",
            validation=None,
        )
    if name not in CATALOGUE and name not in _VARIANTS:
        raise unknown_name("data set", name, CATALOGUE)
    return CATALOGUE.get(name) or _VARIANTS[name]
