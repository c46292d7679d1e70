"""Highlighted text as a figure: words laid out in lines by their measured widths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mhex.explanation import Explanation
from mhex.viz._colour import INK, MUTED, text_colours
from mhex.viz._labels import (
    TEXT_SCALE_NOTE,
    Legend,
    choose,
    legend,
    prediction_note,
    remark,
    target_count,
    target_label,
)
from mhex.viz._sheet import MARGIN, Sheet, font_note, shorten, text_width, wrap
from mhex.viz.text import Unit, units

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
