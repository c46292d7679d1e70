"""Words that people marked, in the forms they come in."""

from __future__ import annotations

from numbers import Integral
from typing import Any

from mhex.errors import ArgumentError

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
