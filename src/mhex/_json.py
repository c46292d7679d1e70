"""JSON of strangers: what is nested too deeply is refused like any other damage."""

from __future__ import annotations

import json
from typing import Any

_DEEPEST = 64  # levels; Python gives up at about a thousand, in whatever code comes first


def read_json(text: str) -> Any:
    """Plain values from JSON.

    Args:
        text: Of a whole file.

    Raises:
        json.JSONDecodeError: It is not JSON, or its lists and objects are nested too deeply. It is a `ValueError`.
    """
    too_deep = json.JSONDecodeError(f"lists and objects are nested more than {_DEEPEST} levels deep", text[:1], 0)
    try:
        value = json.loads(text)
    except RecursionError:
        raise too_deep from None
    level, depth = [value], 0
    while level := [child for parent in level for child in _children(parent)]:
        depth += 1
        if depth > _DEEPEST:
            raise too_deep
    return value


def _children(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
