"""Plain values of a file become a checked model: pydantic checks them, and one sentence says what is wrong."""

import json
import types
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from mhex.errors import ArgumentError, unknown_name

T = TypeVar("T")

_TYPES = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", type(None): "null"}
_LIMITS = {"ge": "of at least", "gt": "above", "le": "of at most", "lt": "below"}


def build(kind: type[T], raw: Any, source: str) -> T:
    """Make a pydantic model or a dataclass from a mapping of plain values, as YAML and JSON give them.

    Values must have the very types of its fields. An `ArgumentError` names in one sentence the file (`source`), the
    key, what was expected and what came.
    """
    from pydantic import ValidationError

    if not isinstance(raw, Mapping):
        raise ArgumentError(f"{source}: expected a mapping of keys to values, not {raw!r}.")
    try:
        # As JSON, in which strict types still take a list for a tuple and a mapping for a model.
        return _adapter(kind).validate_json(json.dumps(raw), strict=True)  # type: ignore[arg-type, no-any-return]
    except ValidationError as error:
        raise ArgumentError(f"{source}: {_sentence(kind, raw, error.errors(include_url=False))}") from error
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"{source}: expected texts, numbers, lists and mappings, but {error}.") from error


@cache
def _adapter(kind: type) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


class _Place(NamedTuple):
    """Where a mistake is: its key, the model that has the key, and the expected type and the value under the key."""

    key: str
    section: Any
    hint: Any
    value: Any


def _sentence(kind: type, raw: Any, mistakes: Sequence[Mapping[str, Any]]) -> str:
    """Say the mistake that helps most: an unknown key before others, and a deep one before those of its union."""
    places = [_place(kind, raw, mistake["loc"]) for mistake in mistakes]
    numbers = range(len(mistakes))
    number = max(numbers, key=lambda n: (mistakes[n]["type"] == "extra_forbidden", places[n].key.count(".")))
    mistake, (key, section, hint, value) = mistakes[number], places[number]
    if mistake["type"] == "extra_forbidden":
        return str(unknown_name(f"key in {key}" if key else "key", mistake["loc"][-1], _hints(section)))
    if mistake["type"] == "missing" and isinstance(mistake["loc"][-1], str):
        return f"the key {key} is missing; expected {_words(hint)}."
    if mistake["type"] == "value_error":
        return f"{key}: {mistake['ctx']['error']}" if key else str(mistake["ctx"]["error"])
    return f"{key} should be {_words(hint)}, not {value!r}." if key else f"{mistake['msg']}."


def _place(kind: type, raw: Any, location: Sequence[int | str]) -> _Place:
    """Follow a location of pydantic, which also names the members of unions, through the types and the values."""
    place = _Place("", kind, kind, raw)
    for part in location:
        key, section, hint, value = place
        if isinstance(part, int) and section is not None and isinstance(value, Sequence):
            place = _Place(f"{key}[{part}]", section, _item(hint), value[part])
        elif section is None and isinstance(value, Mapping) and part in value:
            place = _Place(f"{key}.{part}", None, _item(hint), value[part])
        elif section is not None and part in (hints := _hints(section)):
            inner = value.get(part) if isinstance(value, Mapping) else None
            place = _Place(f"{key}.{part}" if key else str(part), _section(hints[part]), hints[part], inner)
    return place


@cache
def _hints(section: Any) -> dict[str, Any]:
    """Types of the keys of a model, with their limits."""
    if is_dataclass(section):
        return get_type_hints(section, include_extras=True)
    entries = section.model_fields.items()
    return {name: Annotated[entry.annotation, *entry.metadata, None] for name, entry in entries}


def _section(hint: Any) -> Any:
    """Find the model in a type such as a list or a union; None if there is none."""
    if hasattr(hint, "model_fields"):
        return hint
    return next((section for argument in get_args(hint) if (section := _section(argument)) is not None), None)


def _item(hint: Any) -> Any:
    """Find the type of the items of the list or the mapping in a type."""
    if get_origin(hint) in (tuple, Mapping):
        return get_args(hint)[get_origin(hint) is Mapping]
    return next((item for argument in get_args(hint) if (item := _item(argument)) is not None), None)


def _words(hint: Any) -> str:
    """Say a type in words: `a whole number of at least 1 or null`."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        limits = [limit for entry in arguments[1:] for limit in getattr(entry, "metadata", [entry])]
        pairs = [(limit, name) for limit in limits for name in _LIMITS if hasattr(limit, name)]
        bounds = [f"{_LIMITS[name]} {getattr(limit, name)}" for limit, name in pairs]
        return f"{_words(arguments[0])} {' and '.join(bounds)}".rstrip()
    if origin in (Union, types.UnionType):
        return " or ".join(map(_words, arguments))
    if origin is Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if origin is tuple:
        return f"a list ({'' if arguments[-1] is Ellipsis else f'{len(arguments)} times '}{_words(arguments[0])})"
    return _TYPES.get(hint, "a mapping of keys to values")
