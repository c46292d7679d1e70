"""Masks as people have them, as 1 at the object, 0 elsewhere and -1 where nothing is known."""

from __future__ import annotations

import math
import warnings
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mhex.errors import ArgumentError, ArgumentTypeError, MhexWarning
from mhex.inputs.batching import is_photo
from mhex.inputs.prepared import check_dense

FORMS = "numbers of words, (start, end) spans with end exclusive, or a bool for each word"


def marked_words(given: Any, who: str, text: str | None = None) -> list[int]:
    """Numbers of the words that were marked in one text, sorted; none for None.

    Args:
        given: Numbers from 0 on, pairs of a first word and the one after the last, or a bool for each word.
        who: Whose they are, for errors.
        text: Words are split at white space; None if it is not known, as of token ids.
    """
    if given is None:
        return []
    values = given.tolist() if hasattr(given, "tolist") else given
    if not isinstance(values, (list, tuple, set, frozenset, range)):
        raise _refused(who, f"got {type(given).__name__}")
    items: list[Any] = [one.tolist() if hasattr(one, "tolist") else one for one in values]
    count = None if text is None else len(text.split())
    if items and all(isinstance(one, bool) for one in items):
        if count is not None and len(items) != count:
            raise _refused(who, f"got {len(items)} bools for a text of {count} words, split at white space")
        return [n for n, one in enumerate(items) if one]
    if all(_is_number(one) for one in items):
        if isinstance(given, tuple) and len(items) == 2:
            first, last = items
            raise _refused(who, f"got {given}: write [({first}, {last})] for a span, [{first}, {last}] for two words")
        if len(items) > 2 and set(items) <= {0, 1}:
            raise _refused(who, "got zeros and ones, which are no numbers of words: turn them into bools")
        found = {int(one) for one in items}
    elif all(isinstance(one, (list, tuple)) and len(one) == 2 and all(map(_is_number, one)) for one in items):
        if wrong := [one for one in items if one[0] >= one[1]]:
            raise _refused(who, f"got the span {tuple(wrong[0])}, which ends before it has a word")
        found = {word for start, end in items for word in (start, end - 1)}  # looked at before they are written out
        _check_range(found, who, count)
        return sorted({word for start, end in items for word in range(start, end)})
    else:
        odd = next((one for one in items if not _is_number(one)), None)
        raise _refused(who, f"got {odd!r} among them")
    _check_range(found, who, count)
    return sorted(found)


def _is_number(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _check_range(words: set[int], who: str, count: int | None) -> None:
    if words and min(words) < 0:
        raise ArgumentError(f"Expected numbers of marked words from 0 on, but the rationale of {who} has {min(words)}.")
    if count is not None and words and max(words) >= count:
        raise ArgumentError(
            f"Expected words up to {count - 1} in the rationale of {who}, which has {count} words split at white "
            f"space, but got {max(words)}; number words by text.split(), not by tokens."
        )


def _refused(who: str, got: str) -> ArgumentError:
    return ArgumentError(f"Expected the rationale of {who} to be {FORMS}, but {got}.")


_WHITE = 255  # the object in masks that are black and white, and what is not labelled in masks of classes
_MOST = 32  # values of a mask of classes; a mask that was scaled or stored as JPEG has more


class MaskReader:
    """Reads the masks of one data set, in which 255 must have one meaning."""

    def __init__(self) -> None:
        self._white: dict[str, int] = {}  # what 255 stood for, and in which sample first
        self._numbered: tuple[int, int] | None = None  # a number of an object that is not 255, and the first sample
        self._warned = False

    def __call__(self, value: Any, number: int) -> Tensor | None:
        """The mask of a sample, (H, W), int8: 1 at the object, 0 elsewhere, -1 to be ignored; None if it has none.

        Args:
            value: A tensor, an array, or a PIL image of mode `1`, `L`, `P` or `I`; (H, W) or (1, H, W); of bools, or
                of whole numbers. 0 is background and -1 is ignored. 255 is the object if there is nothing else beside
                these, and else is ignored. All other numbers are of objects; where some masks have these and others
                255 alone, it is not known what 255 is, and they are refused.
            number: Of the sample in the data set.
        """
        if value is None:
            return None
        mask = _tensor(value, number)
        mask = mask[0] if mask.dim() == 3 and len(mask) == 1 else mask
        if mask.dim() != 2 or not mask.numel():
            raise ArgumentError(
                f"Expected a mask of shape (H, W) or (1, H, W), but that of sample {number} has {tuple(mask.shape)}."
            )
        if mask.dtype == torch.bool:
            return mask.to(torch.int8)
        return self._read(mask, _whole(torch.unique(mask), number), number)

    def _read(self, mask: Tensor, values: set[int], number: int) -> Tensor:
        objects = values - {0, -1}
        if objects == {_WHITE}:
            self._note("the object", number)
        elif _WHITE in objects:
            self._note("ignored", number)
            mask = mask.masked_fill(mask == _WHITE, -1)
            objects -= {_WHITE}
        others = objects - {_WHITE}
        if others and self._numbered is None:
            self._numbered = (min(others), number)
        self._check_white()
        if len(objects) > 1:
            self._several(sorted(objects), 0 in values, number)
        return mask.clamp(-1, 1).to(torch.int8)

    def _note(self, meaning: str, number: int) -> None:
        self._white.setdefault(meaning, number)
        if len(self._white) > 1:
            told = " and ".join(f"{meaning} in that of sample {first}" for meaning, first in self._white.items())
            raise ArgumentError(
                f"Expected 255 to mean one thing in all masks, but by the values beside it it is {told}; write masks "
                "with 1 at the object, 0 elsewhere and -1 where pixels are to be ignored."
            )

    def _check_white(self) -> None:
        """In a set of 0, 1 and 255, an image with nothing but an ignored border would be taken for all object."""
        alone = self._white.get("the object")
        if alone is not None and self._numbered is not None:
            one, first = self._numbered
            raise ArgumentError(
                f"Expected one number at the object in all masks, but it is {one} in that of sample {first}, and 255 "
                f"stands alone in that of sample {alone}, where it may be the object or ignored; write masks with 1 at "
                "the object, 0 elsewhere and -1 where pixels are to be ignored."
            )

    def _several(self, objects: list[int], background: bool, number: int) -> None:
        listed = ", ".join(map(str, objects[:6])) + (" ..." if len(objects) > 6 else "")
        if not background or len(objects) > _MOST:
            raise ArgumentError(
                f"Expected a mask with 0 at the background, but that of sample {number} has the values {listed}"
                f"{'' if background else ' and no 0'}; write 1 at the object, 0 elsewhere, -1 where pixels are to be "
                "ignored."
            )
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"Masks hold several classes ({listed} in that of sample {number}), and all of them are taken for the "
                "object; give mask == class for one of them.",
                MhexWarning,
                stacklevel=2,
            )


def _tensor(value: Any, number: int) -> Tensor:
    if isinstance(value, Tensor):
        check_dense(value, f"the mask of sample {number}")
        found = value.detach()
        return found if found.is_floating_point() or found.dtype == torch.bool else found.long()
    if is_photo(value):
        value = np.asarray(value)
    if not isinstance(value, (np.ndarray, list, tuple)):
        raise ArgumentTypeError(
            f"Expected a mask as a tensor, an array or a PIL image, but that of sample {number} is a "
            f"{type(value).__name__}."
        )
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ArgumentError(
            f"Expected a mask of rows of one length, but that of sample {number} has others: {error}."
        ) from error
    kinds = {"b": np.bool_, "i": np.int64, "u": np.int64, "f": np.float64}
    if array.dtype.kind not in kinds:
        raise ArgumentTypeError(f"Expected numbers in masks, but that of sample {number} holds {array.dtype}.")
    return torch.from_numpy(array.astype(kinds[array.dtype.kind]))


def _whole(values: Tensor, number: int) -> set[int]:
    """The values of a mask; one that is no whole number from -1 on is refused."""
    for value in values.tolist():
        if not math.isfinite(value) or value != int(value) or value < -1:
            raise ArgumentError(
                f"Expected whole numbers in masks (1 at the object, 0 elsewhere, -1 to be ignored), but that of sample "
                f"{number} holds {value:g}; cut a soft one by mask > 0.5, and leave a mask of classes unscaled."
            )
    return {int(value) for value in values.tolist()}
