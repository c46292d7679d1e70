"""Parts of inputs: what data may give, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mhex.errors import ArgumentError, ArgumentTypeError
from mhex.inputs.parts import InputParts, read_parts

MASKS = torch.eye(4).view(4, 2, 2).bool()[:2]


def test_parts_are_read_from_dictionaries() -> None:
    parts = read_parts({"masks": [[[1, 0], [0, 0]], [[0, 1], [0, 0]]], "without": ["a", "b"], "signs": [1, None]}, 0)
    assert parts is not None
    assert parts.masks is not None
    assert torch.equal(parts.masks, MASKS)
    assert (len(parts), parts.remove([1]), parts.signs) == (2, "b", (1, None))
    assert read_parts(None, 0) is None
    assert read_parts(parts, 0) is parts


def test_masks_come_to_the_size_of_the_model_as_in_or_out() -> None:
    larger = InputParts(MASKS, without=["a", "b"]).at_size((4, 6)).masks
    assert larger is not None
    assert larger.shape == (2, 4, 6)
    assert larger.flatten(1).sum(1).tolist() == [6, 6]


def test_a_digest_tells_parts_apart() -> None:
    parts = [
        InputParts(MASKS, without=["a", "b"]),
        InputParts(MASKS, without=["a", "c"]),
        InputParts(MASKS.flip(0), without=["a", "b"]),
        InputParts(MASKS, without=["a", "b"], signs=(1, 0)),
    ]
    assert len({part.digest for part in parts}) == 4
    assert InputParts(MASKS.clone(), without=["a", "b"]).digest == parts[0].digest


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"without": ["a"]}, "masks of an image or words of a text"),
        ({"masks": MASKS, "words": [[0], [1]], "without": ["a", "b"]}, "not both or neither"),
        ({"masks": MASKS, "without": ["a"]}, "without each of 2 parts"),
        ({"masks": MASKS[:0], "without": []}, "parts of sample 7|at least one part"),
        ({"masks": MASKS, "without": ["a", "b"], "signs": [1, 3]}, "1, -1, 0 or None"),
        ({"masks": MASKS, "without": ["a", "b"], "maks": 1}, "the keys masks, words"),
        ({"masks": [[1, 0]], "without": ["a"]}, "masks \\(P, H, W\\)"),
        ({"words": ["x"], "without": ["a"]}, "Expected parts of sample 7"),
    ],
)
def test_wrong_parts_are_refused(value: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        read_parts(value, 7)


def test_other_types_are_refused() -> None:
    with pytest.raises(ArgumentTypeError, match="sample 7"):
        read_parts([1, 2], 7)
