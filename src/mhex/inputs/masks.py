"""What people marked, in one form: words of texts by number; pixels as 1 at the object, 0 elsewhere, -1 unknown."""

import math
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mhex._settings import check_that
from mhex.errors import ArgumentError, ArgumentTypeError, warn
from mhex.inputs.photos import is_photo
from mhex.inputs.prepared import check_dense

FORMS = "numbers of words, (start, end) spans with end exclusive, or a bool for each word"


def marked_words(marks: Any, owner: str, text: str | None = None) -> list[int]:
    """Numbers of the words that were marked in one text, sorted; none for None.

    Marks are numbers from 0 on, pairs of a first word and the one after the last, or a bool for each word of the text,
    split at white space; the text is None if it is not known, as of token ids. The owner is named in errors.
    """

    def refused(reason: str) -> ArgumentError:
        return ArgumentError(f"Expected the rationale of {owner} to be {FORMS}, but {reason}.")

    if marks is None:
        return []
    values = marks.tolist() if hasattr(marks, "tolist") else marks
    if not isinstance(values, (list, tuple, set, frozenset, range)):
        raise refused(f"got {type(marks).__name__}")
    items: list[Any] = [item.tolist() if hasattr(item, "tolist") else item for item in values]
    count = None if text is None else len(text.split())
    if items and all(isinstance(item, bool) for item in items):
        if count is not None and len(items) != count:
            raise refused(f"got {len(items)} bools for a text of {count} words, split at white space")
        return [word for word, marked in enumerate(items) if marked]
    if all(map(_is_number, items)):
        if isinstance(marks, tuple) and len(items) == 2:
            first, last = items
            raise refused(f"got {marks}: write [({first}, {last})] for a span, [{first}, {last}] for two words")
        if len(items) > 2 and set(items) <= {0, 1}:
            raise refused("got zeros and ones, which are no numbers of words: turn them into bools")
        spans = [(int(item), int(item) + 1) for item in items]
    elif all(isinstance(item, (list, tuple)) and len(item) == 2 and all(map(_is_number, item)) for item in items):
        spans = [(start, end) for start, end in items]
        if wrong := [span for span in spans if span[0] >= span[1]]:
            raise refused(f"got the span {wrong[0]}, which ends before it has a word")
    else:
        odd = next((item for item in items if not _is_number(item)), None)
        raise refused(f"got {odd!r} among them")
    first, last = min((start for start, _ in spans), default=0), max((end - 1 for _, end in spans), default=-1)
    if first < 0 or (count is not None and last >= count):
        most = "on" if count is None else f"to {count - 1}"
        raise refused(f"got {first if first < 0 else last} where words go from 0 {most}; number them by text.split()")
    return sorted({word for start, end in spans for word in range(start, end)})


def _is_number(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


_WHITE = 255  # the object in masks that are black and white, and what is not labelled in masks of classes
_WRITE = "write masks with 1 at the object, 0 elsewhere and -1 where pixels are to be ignored"
_MOST = 32  # values of a mask of classes; a mask that was scaled or stored as JPEG has more


class MaskReader:
    """Reads masks in which 255 must have one meaning: of the samples of one data set, or of the parts of an image."""

    def __init__(self, noun: str = "sample") -> None:
        self._noun = noun  # what masks are of, in errors
        self._white: int | None = None  # the first sample in which 255 stands alone
        self._numbered: tuple[int, int] | None = None  # a number of an object that is not 255, and the first sample
        self._warned = False

    def __call__(self, value: Any, number: int) -> Tensor | None:
        """The mask of a sample, (H, W), int8: 1 at the object, 0 elsewhere, -1 to be ignored; None if it has none.

        The value is a tensor, an array, or a PIL image of mode `1`, `L`, `P` or `I`, (H, W) or (1, H, W), of bools or
        of whole numbers. 0 is background and -1 is ignored. 255 is the object if there is nothing else beside these,
        and else is ignored. All other numbers are of objects; where some masks have these and others 255 alone, it is
        not known what 255 is, and they are refused.
        """
        if value is None:
            return None
        owner = f"{self._noun} {number}"
        mask = _tensor(value, owner)
        mask = mask[0] if mask.dim() == 3 and len(mask) == 1 else mask
        right = mask.dim() == 2 and mask.numel() > 0
        check_that(right, f"a mask of shape (H, W) or (1, H, W) of {owner}", tuple(mask.shape))
        if mask.dtype == torch.bool:
            return mask.to(torch.int8)
        return self._read(mask, _whole(torch.unique(mask), owner), number)

    def _read(self, mask: Tensor, values: set[int], number: int) -> Tensor:
        objects = values - {0, -1}
        if objects == {_WHITE}:
            self._white = number if self._white is None else self._white
        elif objects:
            mask = mask.masked_fill(mask == _WHITE, -1)
            objects -= {_WHITE}
            self._numbered = self._numbered or (min(objects), number)
        # In a set of 0, 1 and 255, an image with nothing but an ignored border would be taken for all object.
        if self._white is not None and self._numbered is not None:
            raise ArgumentError(
                f"Expected one number at the object in all masks, but it is {self._numbered[0]} in that of "
                f"{self._noun} {self._numbered[1]}, and 255 stands alone in that of {self._noun} {self._white}; "
                f"{_WRITE}."
            )
        if len(objects) > 1:
            self._several(sorted(objects), 0 in values, number)
        return mask.clamp(-1, 1).to(torch.int8)

    def _several(self, objects: list[int], background: bool, number: int) -> None:
        listed = ", ".join(map(str, objects[:6])) + (" ..." if len(objects) > 6 else "")
        values = f"{listed}{'' if background else ' and no 0'}"
        right = background and len(objects) <= _MOST
        check_that(right, f"0 at the background of the mask of {self._noun} {number}", values, f"; {_WRITE}")
        if not self._warned:
            self._warned = True
            classes = f"several classes ({listed} in that of {self._noun} {number})"
            warn(f"Masks hold {classes}, and all of them are taken for the object; give mask == class for one of them.")


def _tensor(value: Any, owner: str) -> Tensor:
    if isinstance(value, Tensor):
        check_dense(value, f"the mask of {owner}")
        mask = value.detach()
        return mask if mask.is_floating_point() or mask.dtype == torch.bool else mask.long()
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ArgumentError(f"Expected rows of one length in the mask of {owner}: {error}.") from error
    kinds = {"b": np.bool_, "i": np.int64, "u": np.int64, "f": np.float64}
    known = is_photo(value) or isinstance(value, (np.ndarray, list, tuple))
    if not known or array.dtype.kind not in kinds:
        actual = f"{type(value).__name__} of {array.dtype}"
        raise ArgumentTypeError(f"Expected a tensor, array or PIL image as mask of {owner}, but got {actual}.")
    return torch.from_numpy(array.astype(kinds[array.dtype.kind]))


def _whole(values: Tensor, owner: str) -> set[int]:
    """The values of a mask; one that is no whole number from -1 on is refused."""
    for value in values.tolist():
        right = math.isfinite(value) and value == int(value) and value >= -1
        advice = "; cut a soft mask by mask > 0.5, and leave one of classes unscaled"
        check_that(right, f"whole numbers from -1 on in the mask of {owner}", f"{value:g}", advice)
    return {int(value) for value in values.tolist()}
