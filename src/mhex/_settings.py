"""Checks of settings and options: by choices, by bounds, and by the types that they are annotated with."""

import math
from collections.abc import Collection, Sequence
from numbers import Integral, Real
from types import NoneType
from typing import Any, get_args, get_origin

from mhex.errors import ArgumentError, ArgumentTypeError

_MOST = 10**6  # passes, draws, pixels: more of them take days, and memory before the first
_LARGEST = 1e30  # of numbers with a fraction


def check_number(name: str, value: object, low: float = 0.0, high: float = math.inf) -> None:
    """Refuse what is no finite number, or not between `low` and `high`."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or value == math.inf or not low <= value <= high:  # type: ignore[operator]
        end = "on" if high == math.inf else f"to {high:g}"
        raise ArgumentError(f"Expected {name} to be a number from {low:g} {end}, but got {value!r}.")


def check_choice(name: str, value: object, choices: Collection[str | None]) -> None:
    """Refuse a value that is not among the choices."""
    if value not in tuple(choices):  # a dictionary cannot be asked about every value
        words = [repr(choice) for choice in choices]
        listed = " or ".join(words) if len(words) < 3 else f"one of {', '.join(words)}"
        raise ArgumentError(f"Expected {name} to be {listed}, but got {value!r}.")


def check_that(right: bool, expected: str, got: object, advice: str = "") -> None:
    """Refuse what is not right, with what was expected, what came in its place, and what to do."""
    if not right:
        raise ArgumentError(f"Expected {expected}, but got {got}{advice}.")


def check_count(name: str, value: object, or_none: bool = False, most: float = _MOST) -> None:
    """Refuse what is no whole number from 1 to `most`; None passes where `or_none` says so."""
    if value is None and or_none:
        return
    if isinstance(value, bool) or not isinstance(value, Integral) or not 1 <= int(value) <= most:
        end = "on" if most == math.inf else f"to {most}"
        raise ArgumentError(f"Expected {name} to be a whole number from 1 {end}, but got {value!r}.")


def check_seed(name: str, value: object) -> int:
    """A seed as an int; refused unless it is a whole number. Any will do, negative and large ones too."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ArgumentTypeError(f"Expected {name} to be a whole number, such as 0, but got {value!r}.")
    return int(value)


def check_kind(name: str, value: Any, kinds: Sequence[Any]) -> Any:
    """A setting in plain numbers; refused if it has another type than it is annotated with, or is beyond all reason.

    The kinds that it may have are `int`, `float`, `str`, `bool`, `NoneType`, a tuple of whole numbers or one of names.
    """
    words = []
    for kind in kinds:
        if kind is int:
            right, word = _is_number(value, Integral, _MOST), f"a whole number up to {_MOST}"
        elif kind is float:
            right, word = _is_number(value, Real, _LARGEST), "a finite number"
        elif get_origin(kind) is tuple and str in get_args(kind):
            right = isinstance(value, tuple) and all(isinstance(part, str) for part in value)
            word = "a list of names"
        elif get_origin(kind) is tuple:
            right = isinstance(value, tuple) and all(_is_number(part, Integral, _MOST) for part in value)
            word = f"a list of whole numbers up to {_MOST}"
        elif kind in (NoneType, bool):
            right, word = isinstance(value, kind), "None" if kind is NoneType else "True or False"
        else:
            right, word = isinstance(value, str), "a name"
        if right:
            return _plain(value)
        words.append(word)
    raise ArgumentTypeError(f"Expected {name} to be {' or '.join(words)}, but got {value!r}.")


def _plain(value: Any) -> Any:
    """A value as files and messages can hold it: numbers of numpy become those of Python."""
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    if isinstance(value, (bool, int, float)):
        return value
    return int(value) if isinstance(value, Integral) else float(value) if isinstance(value, Real) else value


def _is_number(value: Any, kind: Any, most: float) -> bool:
    """Whether a value is a number of this kind, from -most to most; True and False are none."""
    return isinstance(value, kind) and not isinstance(value, bool) and bool(abs(value) <= most)
