"""Parts of an input that can be taken away: where they are, and the input without them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mhex._settings import check_that
from mhex.errors import ArgumentError, ArgumentTypeError

FORM = (
    "{'image': ..., 'parts': {'masks': [(H, W) of each part], 'without': [the image without each part]}}, or of texts "
    "{'text': ..., 'parts': {'words': [numbers of the words of each part], 'without': [the text without each part]}}"
)
_KEYS = ("masks", "words", "without", "signs")
Without = Callable[[Sequence[int]], Any]


@dataclass(frozen=True, eq=False, repr=False)
class InputParts:
    """The parts of one input.

    A part is worth what the model's score loses without it, which metrics called `truth-...` measure.
    """

    masks: Tensor | None = None  # of an image: bool (P, H, W), True at each part
    words: tuple[tuple[int, ...], ...] | None = None  # of a text: numbers of the words of each part
    # From numbers of parts to the input without them, in the form of the input. A list has the inputs without one part.
    without: Without | Sequence[Any] = ()
    # What is known by construction: 1 where a part speaks for the label, -1 against it, 0 for nothing, None if unknown.
    signs: tuple[int | None, ...] | None = None

    def __post_init__(self) -> None:
        if (self.masks is None) == (self.words is None):
            raise ArgumentError("Expected masks of an image or words of a text as its parts, and not both or neither.")
        check_that(len(self) > 0, "at least one part", "none")
        if not callable(self.without):
            count = len(self.without)
            check_that(count == len(self), f"the input without each of {len(self)} parts", f"{count} inputs")
        if self.signs is not None:
            right = len(self.signs) == len(self) and all(sign in (1, 0, -1, None) for sign in self.signs)
            check_that(right, f"1, -1, 0 or None as the sign of each of {len(self)} parts", self.signs)

    def __len__(self) -> int:
        return len(self.words or ()) if self.masks is None else len(self.masks)

    def __repr__(self) -> str:
        return f"InputParts({len(self)} parts, {self.digest})"

    @cached_property
    def digest(self) -> str:
        """A short name of the parts and of the inputs without them, the same in every process.

        Of a function that makes these inputs, its name alone is read.
        """
        digest = hashlib.sha256(repr((self.words, self.signs)).encode())
        if self.masks is not None:
            digest.update(self.masks.cpu().to(torch.uint8).numpy().tobytes())
        if callable(self.without):
            digest.update(getattr(self.without, "__qualname__", type(self.without).__qualname__).encode())
        else:
            for value in self.without:
                digest.update(value.encode() if isinstance(value, str) else np.asarray(value).tobytes())
        return digest.hexdigest()[:16]

    def at_size(self, size: tuple[int, int]) -> InputParts:
        """The parts with their masks at the size (H, W) that a model sees; a pixel stays in or out."""
        if self.masks is None or tuple(self.masks.shape[-2:]) == size:
            return self
        masks = F.interpolate(self.masks[None].float(), size=size, mode="nearest-exact")[0].bool()
        return replace(self, masks=masks)

    def remove(self, numbers: Sequence[int]) -> Any:
        """The input without some of its parts."""
        if callable(self.without):
            return self.without(tuple(numbers))
        if len(numbers) != 1:
            raise ArgumentError(
                f"Expected the input without parts {list(numbers)}, but only inputs without one part were given; give "
                "'without' as a function of the numbers of parts."
            )
        return self.without[numbers[0]]


def read_parts(value: Any, number: int) -> InputParts | None:
    """Parts of sample `number` as its data gives them: `InputParts`, or a dictionary of its fields; None if none."""
    if value is None or isinstance(value, InputParts):
        return value
    if not isinstance(value, Mapping):
        raise ArgumentTypeError(f"Expected parts of sample {number} as {FORM}, but got {type(value).__name__}.")
    unknown = [key for key in value if key not in _KEYS]
    check_that(not unknown, f"the keys {', '.join(_KEYS)} in the parts of sample {number}", unknown)
    masks, words, signs = value.get("masks"), value.get("words"), value.get("signs")
    try:
        if masks is not None:
            masks = torch.stack([torch.as_tensor(mask) for mask in masks]).bool()
        tuples = None if words is None else tuple(tuple(int(word) for word in part) for part in words)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentError(f"Expected parts of sample {number} as {FORM}: {error}.") from error
    if masks is not None:
        check_that(masks.dim() == 3, f"masks (P, H, W) of the parts of sample {number}", tuple(masks.shape))
    return InputParts(masks, tuples, value.get("without", ()), None if signs is None else tuple(signs))
