from __future__ import annotations

import json

import pytest

from mhex._files import read_json


def test_values_are_those_of_the_standard_library() -> None:
    text = '{"a": [1, 2.5, null, {"b": "c"}], "d": {}}'
    assert read_json(text) == json.loads(text)


@pytest.mark.parametrize("depth", [66, 900, 100_000])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_deep_nesting_is_an_error_of_json(depth: int, opening: str, closing: str) -> None:
    with pytest.raises(json.JSONDecodeError, match="nested more than 64 levels deep"):
        read_json(depth * opening + "1" + depth * closing)


def test_nesting_within_reason_is_read() -> None:
    assert read_json(64 * "[" + 64 * "]")
