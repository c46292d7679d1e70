"""Tables of the command line: aligned for a terminal, a line for each row with tabs between for other programs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

_LEAST = 28  # signs of a description that is shortened
_GAP = "  "
_INDENT = "    "


@dataclass(frozen=True)
class Table:
    """Rows of names and words, each in one line.

    Attributes:
        columns: Headings.
        rows: Cells, one for each heading. Names in them are never broken or shortened, so that they can be copied.
        prose: Headings of descriptions, which are shortened where there is no room.
        several: Headings of cells with several words or names, which may be broken between these.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    prose: Collection[str] = ()
    several: Collection[str] = ()

    def plain(self) -> str:
        """Headings and rows, with tabs between the cells."""
        return "\n".join("\t".join(row) for row in (self.columns, *self.rows))

    def fitted(self, width: int) -> str:
        """The table in lines of a terminal; columns without room are put below each row, with their headings.

        Args:
            width: Signs in a line. Only a name that is longer by itself goes beyond.
        """
        widths = self._widths(width)
        lines = [self._line(self.columns, widths), "-" * min(width, _taken(widths))]
        for row in self.rows:
            lines.append(self._line(row, widths))
            lines += self._below([(self.columns[k], cell) for k, cell in enumerate(row) if k not in widths], width)
        return "\n".join(lines)

    def _widths(self, width: int) -> dict[int, int]:
        """Signs of each column that has room beside the first one, by its place."""
        natural = [max(_length(row[k]) for row in (self.columns, *self.rows)) for k in range(len(self.columns))]
        prose = [k for k, heading in enumerate(self.columns) if heading in self.prose]
        widths = {k: min(size, _LEAST) if k in prose else size for k, size in enumerate(natural)}
        while len(widths) > 1 and _taken(widths) > width:
            others = [k for k in widths if k and k not in prose] or [k for k in widths if k]
            del widths[max(others, key=lambda k: (widths[k], k))]
        for k in prose:
            if k in widths:
                widths[k] = min(natural[k], widths[k] + max(0, width - _taken(widths)))
        return widths

    def _line(self, row: Sequence[str], widths: dict[int, int]) -> str:
        cells = [_shortened(row[k], size) if self.columns[k] in self.prose else row[k] for k, size in widths.items()]
        padded = [cell + " " * (size - _length(cell)) for cell, size in zip(cells, widths.values(), strict=True)]
        return _GAP.join(padded).rstrip()

    def _below(self, cells: Sequence[tuple[str, str]], width: int) -> list[str]:
        """Cells with their headings, as many in a line as it takes; empty ones are left out."""
        lines: list[str] = []
        for heading, cell in cells:
            whole = f"{heading}: {cell}"
            if not cell:
                continue
            if lines and _length(f"{lines[-1]} | {whole}") <= width:
                lines[-1] += f" | {whole}"
                continue
            may_break = heading in self.prose or heading in self.several
            first, *words = whole.split(" ") if may_break else [whole]
            lines.append(_INDENT + first)
            for word in words:
                if _length(f"{lines[-1]} {word}") <= width:
                    lines[-1] += f" {word}"
                else:
                    lines.append(2 * _INDENT + word)
        return lines


def _taken(widths: dict[int, int]) -> int:
    return sum(widths.values()) + len(_GAP) * (len(widths) - 1)


def _length(text: str) -> int:
    """Columns that a text takes in a terminal: some signs take two, or none."""
    from rich.cells import cell_len

    return cell_len(text)


def _shortened(text: str, width: int) -> str:
    from rich.cells import set_cell_size

    return text if _length(text) <= width else set_cell_size(text, width - 1).rstrip() + "…"
