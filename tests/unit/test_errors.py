from __future__ import annotations

from mhex.errors import some_of, unknown_name


def test_near_names_are_offered() -> None:
    assert str(unknown_name("method", "gaee", ["gae", "lrp"])) == "Unknown method 'gaee'. Did you mean 'gae'?"


def test_long_lists_say_how_many_more_there_are_and_where() -> None:
    names = [f"blocks.{place}.norm" for place in range(100)]
    sentence = str(unknown_name("layer", "?", names))
    assert "blocks.39.norm and 60 more; see model.named_modules()." in sentence
    assert "blocks.40.norm" not in sentence
    assert str(unknown_name("block", "?", names)).endswith("blocks.39.norm and 60 more.")


def test_short_lists_are_whole() -> None:
    assert str(unknown_name("layer", "?", ["a", "b"])) == "Unknown layer '?'. Known: a, b."
    assert some_of([1, 2, 3], 3) == "1, 2, 3"
    assert some_of([1, 2, 3], 2, "; ") == "1; 2 and 1 more"
