"""What is known of a data set by name: how to load it, and what a model card must say about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from mhex.data.items import Items
from mhex.data.photo_sets import PhotoSet
from mhex.data.sets import ImageSet, TextSet
from mhex.errors import ArgumentError

AnySet = ImageSet | PhotoSet | TextSet  # of one class each: what a recipe can learn from
Task = Literal["classes", "ordered classes", "several classes", "pixels", "values"]


@dataclass(frozen=True)
class DataEntry:
    """A data set by name.

    Attributes:
        load: From a split and a keyword ``limit`` to the set: an `AnySet`, where the task is one of classes or ordered
            classes; else an `ImageSet`, a `SegmentationSet` or a `ValueSet`.
        title: Its full name.
        licence: Its licence.
        citation: What to cite.
        form: In which form the file holds it.
        files: What to place in the data folder.
        kind: ``"image"`` or ``"text"``.
        task: What is told of each sample.
        train: Split to learn from; None where all of it is for judging.
        validation: Split to choose by; None where there is none.
        test: Split to judge by.
        answers: What a class is, in one word.
        group_answers: What a group of classes is.
        beside: What ``load`` is given to load what explanations are judged by, such as masks.
        shown: What ``items`` is given.
        judged: What explanations can be judged by: masks, rationales, two classes.
    """

    load: Callable[..., Any]
    title: str
    licence: str
    citation: str
    form: str
    files: str
    kind: Literal["image", "text"] = "image"
    task: Task = "classes"
    train: str | None = "train"
    validation: str | None = "val"
    test: str = "test"
    answers: str = "class"
    group_answers: str = "group"
    beside: Mapping[str, Any] = field(default_factory=dict)
    shown: Mapping[str, Any] = field(default_factory=dict)
    judged: str = ""

    @property
    def learnable(self) -> bool:
        """Whether a recipe can train a classifier on it."""
        return self.train is not None and self.task in ("classes", "ordered classes")

    def items(self, split: str | None = None, *, limit: int | None = None, **options: Any) -> Items:
        """Samples for `mhex.evaluate`, with masks or rationales where the set has them.

        Args:
            split: By default the one to judge by.
            limit: At most so many samples, evenly spaced over the split.
            **options: For the loader, such as ``side``.

        Raises:
            DataMissingError: A file is missing; the message says what to place where.
            ArgumentError: The split is unknown or the limit is not positive.
        """
        loaded = self.load(split or self.test, limit=limit, **{**self.beside, **options})
        found: Items = loaded.items(**self.shown)
        if not len(found):
            raise ArgumentError(f"Nothing of {self.title} is left to be judged on: take more of it than {limit}.")
        return found
