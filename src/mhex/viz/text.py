"""Highlighted text as a figure: words laid out in lines by their measured widths."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mhex._printable import escaped
from mhex.explanation import Explanation
from mhex.inputs.words import MARKS, Pooling, clean, pool_runs, usual_pooling, word_runs
from mhex.viz.colour import INK, MUTED, text_colours
from mhex.viz.sheet import (
    MARGIN,
    TEXT_SCALE_NOTE,
    Legend,
    Sheet,
    choose,
    font_note,
    legend,
    prediction_note,
    remark,
    shorten,
    target_count,
    target_label,
    target_scores,
    text_width,
    wrap,
)

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


_WIDTH = 7.2
_ROOM = _WIDTH - 2 * MARGIN
_LINE = 0.27
_HEADING = 0.3
_SIZE = 10
_PAD = 0.035
_SPACE = 0.055
_MOST_BLOCKS = 16
# Agg draws at most 65536 pixels in a direction; this stays well below it at print quality.
_MOST_LINES = 600


@dataclass(frozen=True)
class Block:
    """A text with a heading: a title, shortened to fit, and a tail that is always shown."""

    title: str
    tail: str
    words: Sequence[Unit]
    signed: bool


def text_figure(
    explanation: Explanation, samples: Sequence[int] | None = None, targets: Sequence[int] | None = None
) -> Sheet:
    """Draw the highlighted text of each sample and target below each other.

    Args:
        explanation: Of texts.
        samples: Which samples to draw; None for as many as sixteen texts hold, with a sentence on the others.
        targets: Which of several targets to draw; None for all, up to sixteen.
    """
    chosen, more_targets = choose(targets, target_count(explanation), _MOST_BLOCKS, "targets", "mhex.viz.figure")
    most = max(1, _MOST_BLOCKS // len(chosen))
    shown, more_samples = choose(samples, explanation.scores.shape[0], most, "samples", "mhex.viz.figure")
    numbered = len(shown) > 1
    blocks = [
        explanation_block(explanation, sample, target, f"sample {sample}" if numbered else "")
        for sample in shown
        for target in chosen
    ]
    names = {target_label(explanation, sample, target)[0] for sample in shown for target in chosen}
    bar = legend(explanation, names)
    notes = [prediction_note(explanation, shown), more_samples, more_targets]
    return draw_blocks(blocks, explanation.method, [bar], notes)


def explanation_block(explanation: Explanation, sample: int, target: int, prefix: str = "") -> Block:
    """One text of an explanation under its target, what the model says of it, and where it was cut."""
    name, said = target_label(explanation, sample, target)
    tail = ", ".join(filter(None, (said, remark(explanation, sample, target), explanation.cut(sample))))
    title = f"{prefix} · {name}" if prefix else name
    return Block(title, tail, units(explanation, sample, target), explanation.signed)


def draw_blocks(blocks: Sequence[Block], heading: str, legends: Sequence[Legend], notes: Sequence[str]) -> Sheet:
    """Draw texts below each other on a sheet that fits them.

    Args:
        blocks: Top to bottom. Lines that would make the picture too tall are left out, and a sentence says so.
        heading: Upper left, bold; may be empty.
        legends: One colour bar each, below the texts.
        notes: Sentences at the bottom; empty ones are left out.
    """
    laid = [break_lines(block.words, _ROOM) for block in blocks]
    total = sum(map(len, laid))
    left = _MOST_LINES
    for number, lines in enumerate(laid):
        laid[number] = lines[:left]
        left -= len(laid[number])
    cut = f"Only the first {_MOST_LINES} of {total} lines fit; the HTML page shows all." if total > _MOST_LINES else ""
    boxes = font_note([heading, *(text for b in blocks for text in (b.title, *(unit.text for unit in b.words)))])
    sentences = [
        line for note in (*notes, TEXT_SCALE_NOTE, boxes, cut) if note for line in wrap(note, _ROOM, 7.5, most=8)
    ]
    top = MARGIN + (0.32 if heading else 0.0)
    body = sum(_HEADING + _LINE * len(lines) + 0.1 for lines in laid)
    sheet = Sheet(_WIDTH, top + body + 0.24 * len(legends) + 0.2 * len(sentences) + 0.05 + MARGIN)
    if heading:
        sheet.write(MARGIN, MARGIN + 0.16, shorten(heading, _ROOM, 12, bold=True), 12, bold=True)
    y = top
    for block, lines in zip(blocks, laid, strict=True):
        _draw_heading(sheet, block, y + 0.19)
        y += _HEADING
        for line in lines:
            _draw_line(sheet, line, y, block.signed)
            y += _LINE
        y += 0.1
    y += 0.05
    for bar in legends:
        sheet.bar(MARGIN, y + 0.12, bar, text=True, room=_ROOM)
        y += 0.24
    for sentence in sentences:
        sheet.write(MARGIN, y + 0.14, sentence, 7.5, MUTED)
        y += 0.2
    return sheet


def break_lines(words: Sequence[Unit], room: float) -> list[list[Unit]]:
    """Fill lines of `room` inches. A comma stays with its word, unless the two alone are wider than a line."""
    lines: list[list[Unit]] = []
    used = 0.0
    for chunk in _chunks(words):
        width = sum(map(_width, chunk))
        if lines and used + _SPACE + width <= room:
            lines[-1] += chunk
            used += _SPACE + width
            continue
        lines.append([])
        used = 0.0
        for unit in chunk:
            if lines[-1] and used + _width(unit) > room:
                lines.append([])
                used = 0.0
            lines[-1].append(unit)
            used += _width(unit)
    return lines


def _chunks(words: Sequence[Unit]) -> list[list[Unit]]:
    chunks: list[list[Unit]] = []
    for unit in words:
        if chunks and not unit.space:
            chunks[-1].append(unit)
        else:
            chunks.append([unit])
    return chunks


def _width(unit: Unit) -> float:
    return min(text_width(unit.text, _font_size(unit)) + 2 * _PAD, _ROOM)


def _font_size(unit: Unit) -> float:
    return 0.8 * _SIZE if unit.special else _SIZE


def _draw_heading(sheet: Sheet, block: Block, y: float) -> None:
    tail = f"  {block.tail}" if block.tail else ""
    title = shorten(block.title, _ROOM - text_width(tail, 9), 9, bold=True)
    sheet.write(MARGIN, y, title, 9, bold=True)
    sheet.write(MARGIN + text_width(title, 9, bold=True), y, tail, 9)


def _draw_line(sheet: Sheet, line: Sequence[Unit], y: float, signed: bool) -> None:
    x = MARGIN
    for number, unit in enumerate(line):
        if number and unit.space:
            x += _SPACE
        width = _width(unit)
        ink = MUTED if unit.special else INK
        if unit.strength != 0:
            background, ink = text_colours(unit.strength, signed)
            sheet.box(x, y + 0.02, width, _LINE - 0.05, background)
        text = shorten(unit.text, width - 2 * _PAD + 1e-6, _font_size(unit))
        sheet.write(x + width / 2, y + 0.185, text, _font_size(unit), ink, centred=True)
        x += width
