"""What a suite file tells of papers: their numbers, and what they say of methods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mhex.errors import ArgumentError


@dataclass(frozen=True)
class PublishedPart:
    """Numbers of a paper, shown beside ours.

    Attributes:
        paper: Which one.
        table: Where in it.
        note: Data, model and protocol there, and how far numbers can be compared.
        values: By method and column, both as they are called in our tables: `gae: {deletion: 0.1}`.
        percent: Whether they are a hundred times ours.
        models: Labels of the models whose table they stand beside; all by default.
    """

    paper: str
    table: str
    note: str
    values: Mapping[str, Any]
    percent: bool = False
    models: tuple[str, ...] = ()


@dataclass(frozen=True)
class ClaimPart:
    """What is said of methods, to be tested on our rows.

    Attributes:
        words: The claim, in a few words.
        column: As it is called in our tables, without the seed.
        better: Methods that are said to be better, each of them than each of the others.
        than: The others.
        models: Labels of the models that it is tested on; all by default.
    """

    words: str
    column: str
    better: tuple[str, ...]
    than: tuple[str, ...]
    models: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for key in ("better", "than"):
            if not getattr(self, key):
                raise ArgumentError(f"{key} should name a method.")
        if both := [name for name in self.better if name in self.than]:
            raise ArgumentError(f"{both[0]} should not be both better and worse.")
        if any(sign in self.words for sign in "|\n"):
            raise ArgumentError("words should be one line without '|', since they stand in a table.")
