"""Highlighted text: the words of an explanation with their scores, laid out in lines by their measured widths."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from mhex.inputs.words import MARKS, clean, pool_runs, word_runs
from mhex.viz.canvas import Paper, PaperMaker
from mhex.viz.captions import TEXT_SCALE_NOTE, Drawable, Legend, remark, target_label, target_scores
from mhex.viz.colour import INK, MUTED, text_colours
from mhex.viz.layout import MARGIN, lay_out
from mhex.viz.letters import font_note, shorten, text_width

_SPECIAL = re.compile(r"\[(?!UNK)[A-Z0-9_]+\]|<(?!unk)[^<>\s]+>|<\|[^<>]*\|>")
_CLOSING = re.compile(r"[,.;:!?%)\]}…]")
_OPENING = ("(", "[", "{")
# Chinese and Japanese letters and their punctuation stand without spaces.
_EAST_ASIAN = re.compile("[\u2e80-\u9fff\uff00-\uffef]")
_AFTER_APOSTROPHE = ("s", "t", "re", "ve", "ll", "d", "m")
_WIDTH = 7.2
_ROOM = _WIDTH - 2 * MARGIN
_LINE = 0.27
_HEADING = 0.3
_SIZE = 10
_PAD = 0.035
_SPACE = 0.055
# Agg draws at most 65536 pixels in a direction; this stays well below it at print quality.
_MOST_LINES = 600


@dataclass(frozen=True)
class Unit:
    """A word, or a token, as it is drawn: without sub-word marks, and whether a space stands before it.

    Its strength is the score divided by the largest absolute score of the text. Special ones are class and separator
    tokens, which are not words of the text.
    """

    text: str
    score: float
    strength: float = 0.0
    special: bool = False
    space: bool = True


@dataclass(frozen=True)
class TextBlock:
    """A text with a heading: a title, shortened to fit, and a tail that is always shown."""

    title: str
    tail: str
    words: Sequence[Unit]
    signed: bool


def text_blocks(
    explanations: Sequence[Drawable], names: Sequence[str], samples: Sequence[int], targets: Sequence[int]
) -> list[TextBlock]:
    """Texts under the names of their explanations and targets, what the model says of them, and where they were cut."""
    blocks = []
    for sample in samples:
        number = f"sample {sample}" if len(samples) > 1 else ""
        for target in targets:
            for entry, name in zip(explanations, names, strict=True):
                label, value = target_label(entry, sample, target)
                tail = ", ".join(filter(None, (value, remark(entry, sample, target), entry.cut(sample))))
                title = " · ".join(filter(None, (name, number, label)))
                blocks.append(TextBlock(title, tail, units(entry, sample, target), entry.signed))
    return blocks


def units(explanation: Drawable, sample: int = 0, target: int = 0) -> list[Unit]:
    """The words of a text with their scores, special tokens in their places; tokens where words are not known.

    Scores of words are those of `Explanation.word_scores`. Without tokens, ids are shown, or else positions.
    """
    scores = target_scores(explanation, sample, target).nan_to_num(posinf=0.0, neginf=0.0)
    outside = torch.zeros_like(scores) if explanation.special is None else explanation.special[sample].float().cpu()
    outside = outside[target] if outside.dim() == 2 else outside
    real = torch.ones_like(scores, dtype=torch.bool) if explanation.real is None else explanation.real[sample].cpu()
    scores, outside = scores[real], outside[real]
    if explanation.tokens is not None:
        words = _named_units(explanation, sample, scores.tolist())
    else:
        ids = None if explanation.ids is None else explanation.ids[sample].cpu()[real].tolist()
        names = map(str, range(len(scores))) if ids is None else (f"id {number}" for number in ids)
        values = zip(names, scores.tolist(), outside.tolist(), strict=True)
        words = [Unit(name, score, special=special != 0) for name, score, special in values]
    largest = max((abs(word.score) for word in words if not word.special), default=0.0)
    return [replace(word, strength=word.score / largest if largest > 0 and not word.special else 0.0) for word in words]


def _named_units(explanation: Drawable, sample: int, scores: Sequence[float]) -> list[Unit]:
    """Words of a text whose tokens are known, with the pooled scores of their tokens."""
    tokens = (explanation.tokens or [])[sample]
    numbers = None if explanation.words is None else explanation.words[sample]
    marked = any(token.startswith(MARKS) for token in tokens)
    runs = word_runs([None] * len(tokens) if numbers is None else numbers)
    words: list[Unit] = []
    for (start, end), score in zip(runs, pool_runs(scores, runs), strict=True):
        first = tokens[start]
        if numbers is None:
            special = _SPECIAL.fullmatch(first) is not None and scores[start] == 0
        else:
            special = numbers[start] is None
        text = clean(tokens[start:end]) or "␣"
        space = bool(words) and _space(words[-1], text, first, marked, special)
        words.append(Unit(text, score, special=special, space=space))
    return words


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


def draw_blocks(
    blocks: Sequence[TextBlock],
    heading: str,
    legends: Sequence[Legend],
    notes: Sequence[str],
    paper: PaperMaker | None = None,
) -> Paper:
    """Draw texts below each other on a sheet that fits them; the other arguments are as for `lay_out`.

    Lines that would make the picture too tall are left out, and a sentence says so.
    """
    layout = [break_lines(block.words, _ROOM) for block in blocks]
    total = sum(map(len, layout))
    free = _MOST_LINES
    for place, lines in enumerate(layout):
        layout[place] = lines[:free]
        free -= len(layout[place])
    cut = f"Only the first {_MOST_LINES} of {total} lines fit; the HTML page shows all." if total > _MOST_LINES else ""
    boxes = font_note([heading, *(text for b in blocks for text in (b.title, *(unit.text for unit in b.words)))])
    body = sum(_HEADING + _LINE * len(lines) + 0.1 for lines in layout)
    sheet, y = lay_out(_WIDTH, body, heading, [*notes, TEXT_SCALE_NOTE, boxes, cut], legends, text=True, paper=paper)
    for block, lines in zip(blocks, layout, strict=True):
        tail = f"  {block.tail}" if block.tail else ""
        title = shorten(block.title, _ROOM - text_width(tail, 9), 9, bold=True)
        sheet.write(MARGIN, y + 0.19, title, 9, bold=True)
        sheet.write(MARGIN + text_width(title, 9, bold=True), y + 0.19, tail, 9)
        y += _HEADING
        for line in lines:
            _draw_line(sheet, line, y, block.signed)
            y += _LINE
        y += 0.1
    return sheet


def break_lines(words: Sequence[Unit], room: float) -> list[list[Unit]]:
    """Fill lines of `room` inches. A comma stays with its word, unless the two alone are wider than a line."""
    chunks: list[list[Unit]] = []
    for unit in words:
        if chunks and not unit.space:
            chunks[-1].append(unit)
        else:
            chunks.append([unit])
    lines: list[list[Unit]] = []
    position = 0.0
    for chunk in chunks:
        width = sum(map(_width, chunk))
        if lines and position + _SPACE + width <= room:
            lines[-1] += chunk
            position += _SPACE + width
            continue
        for place, unit in enumerate(chunk):
            if place == 0 or position + _width(unit) > room:
                lines.append([])
                position = 0.0
            lines[-1].append(unit)
            position += _width(unit)
    return lines


def _width(unit: Unit) -> float:
    return min(text_width(unit.text, _font_size(unit)) + 2 * _PAD, _ROOM)


def _font_size(unit: Unit) -> float:
    return 0.8 * _SIZE if unit.special else _SIZE


def _draw_line(sheet: Paper, line: Sequence[Unit], y: float, signed: bool) -> None:
    x = MARGIN
    for place, unit in enumerate(line):
        if place and unit.space:
            x += _SPACE
        width = _width(unit)
        ink = MUTED if unit.special else INK
        if unit.strength != 0:
            background, ink = text_colours(unit.strength, signed)
            sheet.box(x, y + 0.02, width, _LINE - 0.05, background)
        text = shorten(unit.text, width - 2 * _PAD + 1e-6, _font_size(unit))
        sheet.write(x + width / 2, y + 0.185, text, _font_size(unit), ink, centred=True)
        x += width
