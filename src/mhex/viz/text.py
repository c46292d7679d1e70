"""Highlighted text: words and their scores, and how they look in HTML."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mhex._markup import escaped
from mhex._words import MARKS, Pooling, clean, pool_runs, usual_pooling, word_runs
from mhex.explanation import Explanation
from mhex.viz._colour import text_colours
from mhex.viz._labels import target_scores

_SPECIAL = re.compile(r"\[(?!UNK)[A-Z0-9_]+\]|<(?!unk)[^<>\s]+>|<\|[^<>]*\|>")
_CLOSING = re.compile(r"[,.;:!?%)\]}…]")
_OPENING = ("(", "[", "{")
# Chinese and Japanese letters and their punctuation stand without spaces.
_EAST_ASIAN = re.compile("[\u2e80-\u9fff\uff00-\uffef]")
_AFTER_APOSTROPHE = ("s", "t", "re", "ve", "ll", "d", "m")


@dataclass(frozen=True)
class Unit:
    """A word, or a token, as it is drawn.

    Attributes:
        text: Without sub-word marks.
        score: Raw score.
        strength: Score divided by the largest absolute score of the text: in [-1, 1], or [0, 1] if unsigned.
        special: Class and separator tokens, which are not words of the text.
        space: Whether a space stands before it.
    """

    text: str
    score: float
    strength: float = 0.0
    special: bool = False
    space: bool = True


def units(explanation: Explanation, sample: int = 0, target: int = 0) -> list[Unit]:
    """The words of a text with their scores, special tokens in their places; tokens where words are not known.

    Scores of words are those of `Explanation.word_scores`. Without tokens, positions are numbered.
    """
    scores = target_scores(explanation, sample, target).nan_to_num(posinf=0.0, neginf=0.0)
    outside = torch.zeros_like(scores) if explanation.special is None else explanation.special[sample].float().cpu()
    outside = outside[target] if outside.dim() == 2 else outside
    real = None if explanation.real is None else explanation.real[sample].cpu()
    scores, outside = (scores, outside) if real is None else (scores[real], outside[real])
    found: list[Unit] = []
    if explanation.tokens is None:
        found = [
            Unit(str(i), score, special=special)
            for i, (score, special) in enumerate(zip(scores.tolist(), outside.bool().tolist(), strict=True))
        ]
    else:
        tokens = explanation.tokens[sample]
        words = None if explanation.words is None else explanation.words[sample]
        marked = any(token.startswith(MARKS) for token in tokens)
        for pieces, value, special in _groups(tokens, words, scores.tolist(), usual_pooling(explanation.signed)):
            text = clean(pieces) or "␣"
            space = bool(found) and _space(found[-1], text, pieces[0], marked, special)
            found.append(Unit(text, value, special=special, space=space))
    largest = max((abs(unit.score) for unit in found if not unit.special), default=0.0)
    return [_scaled(unit, largest) for unit in found]


def _scaled(unit: Unit, largest: float) -> Unit:
    strength = unit.score / largest if largest > 0 and not unit.special else 0.0
    return Unit(unit.text, unit.score, strength, unit.special, unit.space)


def _groups(
    tokens: Sequence[str], words: Sequence[int | None] | None, scores: Sequence[float], pooling: Pooling
) -> list[tuple[Sequence[str], float, bool]]:
    """Tokens and score of each word, in order, and whether it is a special token."""
    groups: list[tuple[Sequence[str], float, bool]] = []
    runs = word_runs([None] * len(tokens) if words is None else words)
    for (start, end), value in zip(runs, pool_runs(scores, runs, pooling), strict=True):
        pieces = tokens[start:end]
        unnamed = _SPECIAL.fullmatch(pieces[0]) is not None and scores[start] == 0
        groups.append((pieces, value, unnamed if words is None else words[start] is None))
    return groups


def _space(before: Unit, text: str, piece: str, marked: bool, special: bool) -> bool:
    """Whether a space stands before a word. Tokenizers without a mark for it forget it, so it is guessed."""
    if special or before.special:
        return True
    if marked:
        return piece.startswith(MARKS)
    if piece.startswith("##") or _CLOSING.match(text) or before.text in _OPENING:
        return False
    if text == "'" or (before.text == "'" and text in _AFTER_APOSTROPHE):
        return False
    return not (_EAST_ASIAN.match(before.text[-1]) and _EAST_ASIAN.match(text))


def text_html(found: Sequence[Unit], signed: bool) -> str:
    """Words as a paragraph with coloured backgrounds; the score shows when the mouse rests on a word."""
    parts = []
    for unit in found:
        text = escaped(unit.text)
        if unit.special:
            span = f'<span style="color:#767676;font-size:.8em">{text}</span>'
        elif unit.strength == 0:
            span = f'<span title="{unit.score:.3g}">{text}</span>'
        else:
            background, ink = text_colours(unit.strength, signed)
            style = f"background:{background};color:{ink};border-radius:3px;padding:.1em .18em"
            sign = "+" if signed else ""
            span = f'<span style="{style}" title="{unit.score:{sign}.3g}">{text}</span>'
        parts.append((" " if unit.space else "") + span)
    return (
        f'<p style="margin:.3em 0;max-width:none;line-height:1.9;overflow-wrap:anywhere">{"".join(parts).strip()}</p>'
    )
