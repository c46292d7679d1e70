"""From the tokens of a text back to its words, and words of strangers that are safe to show."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from functools import lru_cache

MARKS = ("Ġ", "▁")  # how tokenizers write the space before a word
# Control characters but for white space, marks that turn the direction of reading, and what is no character.
_HIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


def visible(text: str) -> str:
    """The text with a sign in the place of each character that acts on the reader's screen instead of being read."""
    return _HIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)


def escaped(text: str) -> str:
    """The text for HTML and SVG, with nothing in it that acts."""
    return html.escape(visible(text))


def word_runs(words: Sequence[int | None]) -> list[tuple[int, int]]:
    """Start and end of each word among the tokens; a token of no word stands alone.

    Words of a second text are counted from 0 again. A special token stands between the two, so that runs of equal
    numbers are words.
    """
    starts = [i for i, word in enumerate(words) if word is None or i == 0 or word != words[i - 1]]
    return list(zip(starts, [*starts[1:], len(words)], strict=True))


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
