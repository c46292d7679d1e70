"""Which words the tokens of texts belong to: those of the tokenizer, or those between white space."""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, get_args

import torch
from torch import Tensor

from mhex._settings import check_that
from mhex.errors import ArgumentError
from mhex.inputs.prepared import Prepared

Pooling = Literal["max", "sum"]
Words = Literal["tokenizer", "whitespace"]
POOLING: Pooling = "max"  # how scores of tokens make that of their word, unless told otherwise
MARKS = ("Ġ", "▁")  # how tokenizers write the space before a word


def word_runs(words: Sequence[int | None]) -> list[tuple[int, int]]:
    """Start and end of each word among the tokens; a token of no word stands alone."""
    # Words of a second text are counted from 0 again. A special token stands between the two, so that runs of equal
    # numbers are words.
    starts = [i for i, word in enumerate(words) if word is None or i == 0 or word != words[i - 1]]
    return list(zip(starts, [*starts[1:], len(words)], strict=True))


def check_pooling(pooling: object) -> None:
    """Refuse ways of making scores of words that are not known."""
    check_that(pooling in get_args(Pooling), "pooling 'max' or 'sum'", repr(pooling))


def pool(scores: Tensor, words: Tensor, count: int, pooling: Pooling) -> tuple[Tensor, Tensor]:
    """Scores (B, W) of `count` words W, 0 where a word has no token, and bool (B, W), False there.

    Scores are of tokens, (B, N), and words the number of the word of each token, (B, N), -1 for none. The score of a
    word is the highest of its tokens by `"max"`, and their sum by `"sum"`.
    """
    check_pooling(pooling)
    # Off the GPU, where sums depend on the order in which threads come.
    values, place = scores.cpu(), words.cpu().where(words.cpu() >= 0, count)
    empty = values.new_zeros(len(values), count + 1)
    how = "amax" if pooling == "max" else "sum"
    total = empty.scatter_reduce(1, place, values, how, include_self=False)
    valid = empty.scatter_reduce(1, place, torch.ones_like(values), "amax") > 0
    return total[:, :count].to(scores.device), valid[:, :count].to(scores.device)


def pool_runs(scores: Sequence[float], runs: Sequence[tuple[int, int]], pooling: Pooling = POOLING) -> list[float]:
    """Scores of words that are runs of tokens, from the first to before the last; arguments as for `pool`."""
    words = torch.full((len(scores),), -1)
    for word, (start, end) in enumerate(runs):
        words[start:end] = word
    totals, _ = pool(torch.tensor([scores], dtype=torch.float64), words[None], len(runs), pooling)
    values: list[float] = totals[0].tolist()
    return values


def clean(pieces: Sequence[str]) -> str:
    """A word without the marks that tokenizers leave, and with its bytes turned back into letters."""
    text = "".join(piece.removeprefix("##").removesuffix("</w>").lstrip("".join(MARKS)) for piece in pieces)
    return _decode_bytes(text.strip("Ċĉ")).strip()


def _decode_bytes(text: str) -> str:
    """Undo the byte-level alphabet of GPT-2 and RoBERTa; text that is not written in it is returned as it came."""
    table = _byte_alphabet()
    if text.isascii() or any(character not in table for character in text):
        return text
    try:
        decoded = bytes(table[character] for character in text).decode("utf-8")
    except UnicodeDecodeError:
        return text
    return decoded if decoded.isprintable() else text


@lru_cache(maxsize=1)
def _byte_alphabet() -> dict[str, int]:
    # Printable Latin-1 bytes stand for themselves; the n-th of the remaining ones is the letter number 256 + n.
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + n): byte for n, byte in enumerate(hidden)}


def words_of(prepared: Prepared, words: Words) -> tuple[Tensor, int]:
    """Numbers of the words of each token, (B, T, P), -1 where it has no more; and how many words the longest text has.

    Words are split as by the tokenizer, punctuation apart, and those of a second text follow those of the first; or at
    white space, as `str.split` does and people number them: a token may stand in several of these, and words that were
    cut off have none. Special tokens and padding belong to no word.
    """
    rows = _tokenizer_words(prepared) if words == "tokenizer" else _whitespace_words(prepared)
    real, special = prepared.batch.roles
    most = max((len(numbers) for row in rows for numbers in row), default=1)
    table = torch.full((*special.shape, max(1, most)), -1)
    for row, tokens, mask in zip(rows, table, real.cpu(), strict=True):
        padded = [[*numbers, *[-1] * (table.shape[2] - len(numbers))] for numbers in row]
        tokens[mask] = torch.tensor(padded).reshape(-1, table.shape[2])
    table = table.to(special.device).masked_fill(special[..., None], -1)
    if words == "tokenizer" or prepared.texts is None:
        return table, int(table.max()) + 1
    return table, max(len(text.split()) for text in prepared.texts)


def check_split(words: object) -> None:
    """Refuse ways of splitting texts that are not known."""
    check_that(words in get_args(Words), "words 'tokenizer' or 'whitespace'", repr(words))


def check_words(prepared: Prepared) -> None:
    """Refuse texts given as strings if it is not known where their tokens stand."""
    known = prepared.texts is None or prepared.offsets is not None
    expectation = "a fast tokenizer, which says where in a text each token stands, for words split at white space"
    check_that(known, expectation, "another one", "; load it with transformers.AutoTokenizer")


def _tokenizer_words(prepared: Prepared) -> list[list[tuple[int, ...]]]:
    """Words of the real tokens of each text, numbered on where a tokenizer counts from 0 again: in a second text."""
    if prepared.words is None:
        raise ArgumentError(
            "Expected strings with a fast tokenizer for granularity 'word'; give them, or choose 'token'."
        )
    rows: list[list[tuple[int, ...]]] = []
    for words in prepared.words:
        rows.append([])
        first, latest = 0, -1  # number of the first word of this text, and of the latest word of all
        for before, word in zip([None, *words], words, strict=False):
            if word is not None and before is None and first + word <= latest:
                first = latest + 1
            rows[-1].append(() if word is None else (first + word,))
            latest = latest if word is None else first + word
    return rows


def _whitespace_words(prepared: Prepared) -> list[list[tuple[int, ...]]]:
    """Words of the real tokens of each text; one token may stand in several."""
    advice = "; give strings with tokenizer=, or choose words='tokenizer'"
    check_that(prepared.texts is not None, "texts as strings for words split at white space", "token ids", advice)
    check_words(prepared)
    rows = []
    for text, places in zip(prepared.texts or (), prepared.offsets or (), strict=True):
        word_at: dict[int, int] = {}  # by the place of a character
        for word, match in enumerate(re.finditer(r"\S+", text)):
            word_at.update(dict.fromkeys(range(*match.span()), word))
        rows.append([tuple(sorted({word_at[i] for i in range(start, end) if i in word_at})) for start, end in places])
    return rows
