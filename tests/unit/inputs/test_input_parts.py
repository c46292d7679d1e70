"""Parts of inputs: what data may give, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

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


@pytest.mark.parametrize(
    "masks",
    [
        MASKS.numpy(),
        MASKS.float(),
        list(MASKS.numpy()),
        [Image.fromarray(mask.numpy().astype(np.uint8) * 255) for mask in MASKS],
        [mask[None].long() for mask in MASKS],
    ],
)
def test_masks_are_read_in_any_form(masks: Any) -> None:
    parts = InputParts(masks, without=["a", "b"])
    assert parts.masks is not None
    assert torch.equal(parts.masks, MASKS)
    assert parts.digest == InputParts(MASKS, without=["a", "b"]).digest
    assert read_parts({"masks": masks, "without": ["a", "b"]}, 0).digest == parts.digest  # type: ignore[union-attr]


def test_masks_of_another_size_than_the_image_are_refused() -> None:
    parts = InputParts(MASKS, without=["a", "b"])
    photo = Image.new("RGB", (6, 4))
    with pytest.raises(ArgumentError, match=r"sample 5 at the size of its image, \(4, 6\), but got \(2, 2\)"):
        parts.of(photo, (8, 8), 5)
    fitting = parts.at_size((4, 6)).of(photo, (8, 8), 5)
    assert fitting.masks is not None
    assert fitting.masks.shape == (2, 8, 8)
    photo.getexif()[0x0112] = 6  # stored on its side: its upright size is (6, 4)
    assert parts.at_size((6, 4)).of(photo, (8, 8), 5).size == (6, 4)


def test_masks_without_a_pixel_are_refused() -> None:
    parts = InputParts(torch.stack([MASKS[0], MASKS[0] & False]), without=["a", "b"])
    with pytest.raises(ArgumentError, match=r"sample 5, but got none in those of parts \[1\]"):
        parts.of(torch.ones(3, 2, 2), (2, 2), 5)


def test_images_without_parts_have_the_size_of_the_image() -> None:
    images = [torch.ones(3, 2, 2), torch.ones(3, 1, 2)]
    for without in (images, lambda numbers: images[numbers[0]]):
        parts = InputParts(MASKS, without=without).of(torch.ones(3, 2, 2), (2, 2), 0)
        assert parts.remove([0]) is images[0]
        with pytest.raises(
            ArgumentError, match=r"without parts \[1\] at the size of the image, \(2, 2\), but got \(1, 2\)"
        ):
            parts.remove([1])


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
        ({"masks": [[1, 0]], "without": ["a"]}, "\\(H, W\\) or \\(1, H, W\\) of part 0"),
        ({"masks": MASKS[0], "without": ["a"]}, "masks \\(P, H, W\\).*got \\(2, 2\\); put the mask of a single part"),
        ({"masks": [MASKS[0], torch.ones(2, 3)], "without": ["a", "b"]}, "masks of one size"),
        (
            {"masks": [MASKS[0], MASKS[0] * 0.5], "without": ["a", "b"]},
            "whole numbers from -1 on in the mask of part 1",
        ),
        ({"words": ["x"], "without": ["a"]}, "Expected parts of sample 7"),
    ],
)
def test_wrong_parts_are_refused(value: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        read_parts(value, 7)


def test_other_types_are_refused() -> None:
    with pytest.raises(ArgumentTypeError, match="sample 7"):
        read_parts([1, 2], 7)
