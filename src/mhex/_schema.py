"""From what a file holds to frozen dataclasses: every key known, every value of its type and within its limits."""

from __future__ import annotations

import math
import operator
import types
from collections.abc import Mapping
from dataclasses import MISSING, Field, field, fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from mhex.errors import ArgumentError, unknown_name

T = TypeVar("T")


_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


_TESTS = {
    "low": ("at least", operator.ge),
    "high": ("at most", operator.le),
    "above": ("above", operator.gt),
    "below": ("below", operator.lt),
}


def setting(
    default: Any = MISSING,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    below: float | None = None,
) -> Any:
    """A field of a recipe with limits; `low` and `high` are allowed themselves, `above` and `below` are not.

    Args:
        default: Value where the key is left out; none makes the key required.
        low: Smallest value.
        high: Largest value.
        above: Values must be larger.
        below: Values must be smaller.
    """
    limits = {"low": low, "high": high, "above": above, "below": below}
    return field(default=default, metadata={name: limit for name, limit in limits.items() if limit is not None})


def build(kind: type[T], raw: Any, source: str, place: str = "") -> T:
    """Make a dataclass from a mapping as YAML gives it.

    Args:
        kind: The dataclass; fields may be plain types, literals, tuples, mappings, dataclasses, lists of dataclasses
            (whose places are counted from 0 in messages), and unions of those.
        raw: The mapping.
        source: Name of the file, for messages.
        place: Key of the mapping in the file, `"train"`; empty for the whole file.

    Returns:
        The dataclass.

    Raises:
        ArgumentError: One sentence that names the file, the key, what was expected and what came.
    """
    if raw is None:
        raw = {}
    if not isinstance(raw, Mapping):
        raise ArgumentError(f"{source}: {place or 'a recipe'} should be a mapping of keys to values, not {raw!r}.")
    known = {entry.name: entry for entry in fields(kind)}  # type: ignore[arg-type]
    hints = get_type_hints(kind)
    for key in raw:
        if key not in known:
            wrong = unknown_name(f"key{f' in {place}' if place else ''}", str(key), known)
            raise ArgumentError(f"{source}: {wrong}")
    values: dict[str, Any] = {}
    for name, entry in known.items():
        key = f"{place}.{name}" if place else name
        if name in raw:
            values[name] = _value(hints[name], raw[name], entry, source, key)
        elif entry.default is MISSING and entry.default_factory is MISSING:
            raise ArgumentError(f"{source}: the key {key} is missing; expected {_words(hints[name])}.")
    try:
        return kind(**values)
    except ArgumentError as error:  # a check of the dataclass itself, which knows neither file nor key
        raise ArgumentError(f"{source}: {place + ': ' if place else ''}{error}") from error


def _value(hint: Any, raw: Any, entry: Field[Any], source: str, key: str) -> Any:
    """`raw` as `hint` wants it, within the limits of the field."""
    options = list(get_args(hint)) if get_origin(hint) in (Union, types.UnionType) else [hint]
    nested = [option for option in options if is_dataclass(option)]
    others = [option for option in options if option not in (*nested, type(None))]
    if nested and raw is not None and (isinstance(raw, Mapping) or not others):
        return build(nested[0], raw, source, key)  # type: ignore[arg-type]
    lists = [option for option in options if _of_sections(option)]
    if lists and isinstance(raw, list | tuple):
        kind = get_args(lists[0])[0]
        return tuple(_value(kind, item, entry, source, f"{key}[{n}]") for n, item in enumerate(raw))
    for option in options:
        fits, value = _fit(option, raw)
        if fits:
            _limit(value, entry, source, key)
            return value
    raise ArgumentError(f"{source}: {key} should be {_words(hint)}, not {raw!r}.")


def _of_sections(option: Any) -> bool:
    """True of a list of any length that may hold mappings with keys of their own."""
    arguments = get_args(option)
    if get_origin(option) is not tuple or arguments[-1] is not Ellipsis:
        return False
    return any(is_dataclass(kind) for kind in (arguments[0], *get_args(arguments[0])))


def _fit(option: Any, raw: Any) -> tuple[bool, Any]:
    """Whether a value is of a type, and the value in that type."""
    origin, arguments = get_origin(option), get_args(option)
    if option is type(None):
        return raw is None, None
    if option is Any:
        return True, raw
    if origin is Literal:
        # YAML reads a bare `no` as false.
        value = "no" if raw is False and "no" in arguments else raw
        return not isinstance(value, bool) and value in arguments, value
    if option is bool:
        return isinstance(raw, bool), raw
    if option is int:
        return isinstance(raw, int) and not isinstance(raw, bool), raw
    if option is float:
        return _fit_number(raw)
    if option is str:
        return isinstance(raw, str), raw
    if origin is tuple:
        return _fit_tuple(arguments, raw)
    mapping = isinstance(raw, Mapping) and all(isinstance(key, str) for key in raw)
    return mapping, dict(raw) if mapping else raw


def _fit_number(raw: Any) -> tuple[bool, Any]:
    if isinstance(raw, bool) or not isinstance(raw, int | float | str):
        return False, raw
    try:
        number = float(raw)  # also of a text: YAML takes 1e-3 for one, since it lacks a dot, and nobody means that
    except (ValueError, OverflowError):
        return False, raw
    return math.isfinite(number), number if math.isfinite(number) else raw


def _fit_tuple(arguments: tuple[Any, ...], raw: Any) -> tuple[bool, Any]:
    if not isinstance(raw, list | tuple):
        return False, raw
    kinds = [arguments[0]] * len(raw) if arguments[-1] is Ellipsis else list(arguments)
    if len(kinds) != len(raw):
        return False, raw
    pairs = [_fit(kind, item) for kind, item in zip(kinds, raw, strict=True)]
    return all(fits for fits, _ in pairs), tuple(value for _, value in pairs)


def _limit(value: Any, entry: Field[Any], source: str, key: str) -> None:
    limits = entry.metadata
    for item in value if isinstance(value, tuple) else (value,):
        if isinstance(item, bool) or not isinstance(item, int | float):
            continue
        asked = [(words, limits[name], test) for name, (words, test) in _TESTS.items() if name in limits]
        if not all(test(item, limit) for _, limit, test in asked):
            wanted = " and ".join(f"{words} {limit:g}" for words, limit, _ in asked)
            raise ArgumentError(f"{source}: {key} should be {wanted}, not {item:g}.")


def _words(hint: Any) -> str:
    """A type in words: `a whole number or null`."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(_words(option) for option in arguments)
    if hint is type(None):
        return "null"
    if origin is Literal:
        return "one of " + ", ".join(map(str, arguments))
    if origin is tuple:
        count = "" if arguments[-1] is Ellipsis else f"{len(arguments)} times "
        return f"a list ({count}{_words(arguments[0])})"
    return _WORDS.get(hint, "a mapping of keys to values")
