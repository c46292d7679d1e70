"""Reading tables with a heading, and classes by name."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from mhex.data.table import DataFormatError
from mhex.errors import ArgumentError, some_of


def read_table(path: Path) -> dict[str, list[str]]:
    """The columns of a CSV file with a heading.

    Raises:
        DataFormatError: The file has no rows, or a row of another length than the heading, or is not UTF-8.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            heading, *lines = [line for line in csv.reader(stream) if line] or [[]]
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataFormatError(f"{path.name} is not a CSV file in UTF-8 ({error}): save it so.") from error
    wrong = next((number for number, line in enumerate(lines, 2) if len(line) != len(heading)), None)
    if not lines or wrong is not None or len(set(heading)) != len(heading):
        told = (
            f"row {wrong} has other than {len(heading)} entries" if wrong else f"{len(lines)} rows and {heading} came"
        )
        raise DataFormatError(f"{path.name} should have a heading of different names and rows below, and {told}.")
    return {name.strip(): [line[place].strip() for line in lines] for place, name in enumerate(heading)}


def column(table: dict[str, list[str]], name: str, file: str) -> list[str]:
    """A column by name; a missing one is told with those that are there."""
    if name not in table:
        raise DataFormatError(
            f"{file} should have the column {name!r}, and has {list(table)}: add it, or name another."
        )
    return table[name]


def numbers(values: Sequence[str], name: str, file: str) -> list[float]:
    """A column of numbers."""
    try:
        return [float(value) for value in values]
    except ValueError as error:
        raise DataFormatError(f"The column {name!r} of {file} should hold numbers in all rows ({error}).") from error


def named_classes(values: Sequence[str], classes: Sequence[str] | None, file: str) -> tuple[Tensor, tuple[str, ...]]:
    """Labels (N,) and the names of the classes.

    Args:
        values: A class for each row, by name or number.
        classes: Names, in order; values are names or places in it. By default the different values in order, numbers
            by size.
        file: For messages.
    """
    different = sorted(set(values), key=lambda one: (not one.isdigit(), int(one) if one.isdigit() else 0, one))
    if "" in different:
        raise DataFormatError(f"Each row of {file} should have a class, and row {list(values).index('') + 2} has none.")
    if classes is None and all(one.isdigit() for one in different):
        classes = [str(place) for place in range(int(different[-1]) + 1)]
    known = {name: place for place, name in enumerate(different if classes is None else classes)}
    places = {one: int(one) for one in different if one.isdigit() and int(one) < len(known)} | known
    strange = [one for one in different if one not in places]
    if strange:
        raise ArgumentError(
            f"classes should have every class of {file}, and lacks {some_of([*map(repr, strange)], 5)}: it is "
            f"{some_of([*map(repr, known)])}."
        )
    return torch.tensor([places[one] for one in values]), tuple(known)
