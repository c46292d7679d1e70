"""From the tokens of a text back to its words."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, get_args

import torch
from torch import Tensor

from mhex.errors import ArgumentError

Pooling = Literal["max", "sum"]
MARKS = ("Ġ", "▁")  # how tokenizers write the space before a word


def word_runs(words: Sequence[int | None]) -> list[tuple[int, int]]:
    """Start and end of each word among the tokens; a token of no word stands alone.

    Words of a second text are counted from 0 again. A special token stands between the two, so that runs of equal
    numbers are words.
    """
    starts = [i for i, word in enumerate(words) if word is None or i == 0 or word != words[i - 1]]
    return list(zip(starts, [*starts[1:], len(words)], strict=True))


def usual_pooling(signed: bool) -> Pooling:
    """How scores of tokens make that of their word: signed ones are added up, of others the highest counts."""
    return "sum" if signed else "max"


def check_pooling(pooling: object) -> None:
    """Refuse ways of making scores of words that are not known."""
    if pooling not in get_args(Pooling):
        raise ArgumentError(f"Expected pooling {' or '.join(map(repr, get_args(Pooling)))}, but got {pooling!r}.")


def pool(scores: Tensor, words: Tensor, count: int, pooling: Pooling) -> tuple[Tensor, Tensor]:
    """Scores of words.

    Args:
        scores: Of tokens, (B, N).
        words: Number of the word of each token, (B, N); -1 for none.
        count: How many words there may be, W.
        pooling: `"max"` for the highest score of a word's tokens, `"sum"` for their sum.

    Returns:
        Scores (B, W), 0 where a word has no token, and bool (B, W), False there.
    """
    check_pooling(pooling)
    # Off the GPU, where sums depend on the order in which threads come.
    values, place = scores.cpu(), words.cpu().where(words.cpu() >= 0, count)
    empty = values.new_zeros(len(values), count + 1)
    how = "amax" if pooling == "max" else "sum"
    total = empty.scatter_reduce(1, place, values, how, include_self=False)
    counted = empty.scatter_reduce(1, place, torch.ones_like(values), "amax") > 0
    return total[:, :count].to(scores.device), counted[:, :count].to(scores.device)


def pool_runs(scores: Sequence[float], runs: Sequence[tuple[int, int]], pooling: Pooling) -> list[float]:
    """Scores of words that are runs of tokens, from the first to before the last; arguments as for `pool`."""
    words = torch.full((len(scores),), -1)
    for word, (start, end) in enumerate(runs):
        words[start:end] = word
    values: list[float] = pool(torch.tensor([scores], dtype=torch.float64), words[None], len(runs), pooling)[0][
        0
    ].tolist()
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
    # Printable Latin-1 bytes stand for themselves; the n-th of the others is the letter number 256 + n.
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    other = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + n): byte for n, byte in enumerate(other)}
