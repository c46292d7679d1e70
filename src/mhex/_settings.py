"""Settings are checked by the types that they are annotated with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral, Real
from types import NoneType
from typing import Any, get_origin

from mhex.errors import ArgumentTypeError

_MOST = 10**6  # passes, draws, pixels
_LARGEST = 1e30  # of numbers with a fraction


def check_kind(name: str, value: Any, kinds: Sequence[Any]) -> None:
    """Refuse a setting of another type than it is annotated with, and numbers beyond all reason.

    Args:
        name: Name of the setting; seeds have no largest value.
        value: Its value.
        kinds: Types that it may have: `int`, `float`, `str`, `bool`, `NoneType` or a tuple of whole numbers.
    """
    most = math.inf if name.endswith("seed") else _MOST
    words = []
    for kind in kinds:
        if kind is int:
            right, word = _is_number(value, Integral, most), f"a whole number up to {_MOST}"
        elif kind is float:
            right, word = _is_number(value, Real, _LARGEST), "a finite number"
        elif get_origin(kind) is tuple:
            right = isinstance(value, tuple) and all(_is_number(part, Integral, most) for part in value)
            word = f"a list of whole numbers up to {_MOST}"
        elif kind in (NoneType, bool):
            right, word = isinstance(value, kind), "None" if kind is NoneType else "True or False"
        else:
            right, word = isinstance(value, str), "a name"
        if right:
            return
        words.append(word)
    raise ArgumentTypeError(f"Expected {name} to be {' or '.join(words)}, but got {value!r}.")


def _is_number(value: Any, kind: Any, most: float) -> bool:
    """Whether a value is a number of this kind, from -most to most; True and False are none."""
    return isinstance(value, kind) and not isinstance(value, bool) and bool(abs(value) <= most)
