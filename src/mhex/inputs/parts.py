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
from mhex.inputs.masks import MaskReader
from mhex.inputs.photos import is_photo

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

    # Of an image: bool (P, H, W), True at each part; made from one mask of each, as `mhex.inputs.masks` reads them.
    masks: Tensor | None = None
    words: tuple[tuple[int, ...], ...] | None = None  # of a text: numbers of the words of each part
    # From numbers of parts to the input without them, in the form of the input. A list has the inputs without one part.
    without: Without | Sequence[Any] = ()
    # What is known by construction: 1 where a part speaks for the label, -1 against it, 0 for nothing, None if unknown.
    signs: tuple[int | None, ...] | None = None
    size: tuple[int, int] | None = None  # of the image, (H, W), which images without parts must have; None if unknown

    def __post_init__(self) -> None:
        if (self.masks is None) == (self.words is None):
            raise ArgumentError("Expected masks of an image or words of a text as its parts, and not both or neither.")
        object.__setattr__(self, "masks", None if self.masks is None else _read_masks(self.masks))
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

    def of(self, image: Any, seen: tuple[int, int], number: int) -> InputParts:
        """The parts of the image (a photo or tensor) of sample `number`, with masks at the size that a model sees."""
        if self.masks is None:
            return self
        size, shape = size_of(image) or seen, tuple(self.masks.shape[-2:])
        expected = f"masks of the parts of sample {number} at the size of its image, {size}"
        check_that(shape in (size, seen), expected, shape, "; draw or resize them at that size")
        empty = [part for part, mask in enumerate(self.masks) if not bool(mask.any())]
        expected = f"a pixel at least in the mask of each part of sample {number}"
        check_that(not empty, expected, f"none in those of parts {empty}", "; leave these parts out")
        return replace(self.at_size(seen), size=size_of(image))

    def at_size(self, size: tuple[int, int]) -> InputParts:
        """The parts with their masks at the size (H, W) that a model sees; a pixel stays in or out."""
        if self.masks is None or tuple(self.masks.shape[-2:]) == size:
            return self
        masks = F.interpolate(self.masks[None].float(), size=size, mode="nearest-exact")[0].bool()
        return replace(self, masks=masks)

    def remove(self, numbers: Sequence[int]) -> Any:
        """The input without some of its parts."""
        if callable(self.without):
            return self._checked(self.without(tuple(numbers)), numbers)
        if len(numbers) != 1:
            raise ArgumentError(
                f"Expected the input without parts {list(numbers)}, but only inputs without one part were given; give "
                "'without' as a function of the numbers of parts."
            )
        return self._checked(self.without[numbers[0]], numbers)

    def _checked(self, value: Any, numbers: Sequence[int]) -> Any:
        size = size_of(value)
        expected = f"the image without parts {list(numbers)} at the size of the image, {self.size}"
        check_that(None in (size, self.size) or size == self.size, expected, size, "; make it from the image itself")
        return value


def size_of(image: Any) -> tuple[int, int] | None:
    """Height and width of an image tensor, or of a photo that was turned upright; None of anything else."""
    if isinstance(image, Tensor) and image.dim() >= 2:
        return int(image.shape[-2]), int(image.shape[-1])
    if is_photo(image):
        from PIL import ImageOps

        width, height = ImageOps.exif_transpose(image).size
        return height, width
    return None


def _read_masks(masks: Any) -> Tensor:
    """Masks of all parts, bool (P, H, W)."""
    if isinstance(masks, Tensor) and masks.dtype == torch.bool and masks.dim() == 3:
        return masks
    shape = tuple(masks.shape) if hasattr(masks, "shape") else None
    listed = isinstance(masks, (list, tuple)) or (shape is not None and len(shape) in (3, 4))
    actual, advice = shape or type(masks).__name__, "; put the mask of a single part into a list"
    check_that(listed, "masks (P, H, W), or a list of the mask of each part", actual, advice)
    check_that(len(masks) > 0, "at least one part", "none")
    read = MaskReader("part")
    rows = [read(mask, number) for number, mask in enumerate(masks)]
    read_rows = [row == 1 for row in rows if row is not None]
    sizes = {tuple(row.shape) for row in read_rows}
    right = len(read_rows) == len(rows) and len(sizes) == 1
    check_that(right, "masks of one size, one of each part", f"the sizes {sorted(sizes)} of {len(rows)} parts")
    return torch.stack(read_rows)


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
            masks = _read_masks(masks)
        tuples = None if words is None else tuple(tuple(int(word) for word in part) for part in words)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentError(f"Expected parts of sample {number} as {FORM}: {str(error).rstrip('.')}.") from error
    return InputParts(masks, tuples, value.get("without", ()), None if signs is None else tuple(signs))
