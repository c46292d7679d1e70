"""Words that people marked, in the forms they come in, and the scores of words as people split texts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from mhex.errors import ArgumentError
from mhex.inputs import Prepared
from mhex.perturb import Subject, text_units
from mhex.perturb.units import check_map

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


def check_words(prepared: Prepared) -> None:
    """Refuse texts given as strings if it is not known where their tokens stand."""
    if prepared.texts is not None and prepared.offsets is None:
        raise ArgumentError(
            "Expected a fast tokenizer, which says where in a text each token stands, because words that people mark "
            "are split at white space, but got one that does not; load it with transformers.AutoTokenizer."
        )


def word_scores(subject: Subject, saliency: Tensor) -> tuple[Tensor, Tensor]:
    """Highest score of the tokens of each word, (B, W), and bool (B, W), False where no token of a word was given.

    Words of texts that were given as strings are split at white space, also those that were cut off; words of token ids
    are those of the tokenizer.
    """
    texts = subject.prepared.texts
    if texts is None:
        units = text_units(subject, saliency, "word")
        words = units.counted
        assert words is not None
        return units.scores, words
    saliency = check_map(subject, saliency)
    if saliency.shape != subject.main.shape[:2]:
        wanted, own = tuple(subject.main.shape[:2]), tuple(saliency.shape)
        raise ArgumentError(f"Expected maps of shape {wanted}, but got {own}.")
    if "words at white space" not in subject.shared:
        subject.shared["words at white space"] = _tokens_of_words(subject, texts)
    row, token, word = subject.shared["words at white space"]
    most = max(len(text.split()) for text in texts)
    scores = saliency.new_full((len(texts) * most,), -torch.inf)
    scores = scores.scatter_reduce(0, row * most + word, saliency[row, token], "amax").view(len(texts), most)
    counted = scores.isfinite()
    return scores.masked_fill(~counted, 0.0), counted


def _tokens_of_words(subject: Subject, texts: Sequence[str]) -> tuple[Tensor, ...]:
    """Text, token and word of each token that stands in a word, and again for each further word, three (N,)."""
    check_words(subject.prepared)
    offsets, (real, special) = subject.prepared.offsets, subject.batch.roles
    assert offsets is not None
    found = []
    for n, text in enumerate(texts):
        at: dict[int, int] = {}  # the word of each character
        for word, match in enumerate(re.finditer(r"\S+", text)):
            at.update(dict.fromkeys(range(*match.span()), word))
        places = real[n].nonzero()[:, 0].tolist()
        for token, (start, end) in zip(places, offsets[n], strict=True):
            if not special[n, token]:
                found += [(n, token, word) for word in sorted({at[i] for i in range(start, end) if i in at})]
    return torch.tensor(found, device=subject.device).view(-1, 3).unbind(1)


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
