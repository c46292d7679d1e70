"""Columns of plain text in a terminal."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

Field = list[str]  # lines of it

_NAME = 32  # signs in a line of the first column, where a table does not fit
_HEAD = 16  # and at least of a heading


def in_columns(rows: Sequence[Sequence[str]], width: int) -> str:
    """A table with a line below its headings, in one piece if it fits.

    Otherwise headings and names are broken into lines, and columns that have no room are put below the others, beside
    the names again.

    Args:
        rows: Headings, and lines below them; the first field is a name.
        width: Signs in a line.
    """
    names, *columns = ([[field] for field in column] for column in zip(*rows, strict=True))
    if _wide([names, *columns]) > width:
        names = [_broken(field[0], _NAME) for field in names]
        columns = [[_broken(head[0], max(_HEAD, _wide([rest]))), *rest] for head, *rest in columns]
    blocks: list[list[list[Field]]] = []
    for column in columns:
        if not blocks or _wide([*blocks[-1], column]) > width:
            blocks.append([names])
        blocks[-1].append(column)
    return "\n\n".join(_drawn(block) for block in blocks)


def _wide(columns: Sequence[Sequence[Field]]) -> int:
    """Signs that columns take, with two between them."""
    widest = [max((len(line) for field in column for line in field), default=0) for column in columns]
    return sum(widest) + 2 * (len(columns) - 1)


def _broken(text: str, width: int) -> Field:
    kept = re.sub(r" (\S)$", "\u00a0\\1", text)  # a single sign, such as an arrow, stays with its word
    lines = textwrap.wrap(kept, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return [line.replace("\u00a0", " ") for line in lines] or [""]


def _drawn(columns: Sequence[Sequence[Field]]) -> str:
    widths, found = [_wide([column]) for column in columns], []
    for k, fields in enumerate(zip(*columns, strict=True)):
        high = max(map(len, fields))
        # Headings stand on the rule, all else hangs from the top.
        filled = [
            [""] * (high - len(field)) + field if k == 0 else field + [""] * (high - len(field)) for field in fields
        ]
        for line in zip(*filled, strict=True):
            found.append("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())
        if k == 0:
            found.append("-" * _wide(columns))
    return "\n".join(found)
