"""What the command line shows: tables on standard output, progress and complaints on standard error.

Everything that is printed passes through here, because texts, file names and names of classes may hold signs that a
terminal obeys.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from mhex import _files
from mhex._printable import one_line, printable
from mhex._progress import progress_bar
from mhex.errors import MhexWarning

if TYPE_CHECKING:
    from rich.console import Console

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


def output_folder(folder: Path) -> Path:
    """Make sure that a folder exists and can be written to, before any work is spent.

    Raises:
        ArgumentError: It cannot be made or written to.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    return folder


def writing(path: Path) -> AbstractContextManager[None]:
    """Turn the system's refusal to write into one sentence."""
    return _files.writing(path, "choose another folder with --out")


def unique_labels(stems: Iterable[str]) -> list[str]:
    """A label for each stem, all different: the second `cat` becomes `cat-2`. Case does not tell labels apart."""
    stems = list(stems)
    taken: set[str] = set()
    # A stem that is its own label must not lose it to a numbered one that comes first.
    reserved = {stem.casefold() for stem in stems}
    labels = []
    for stem in stems:
        label, number = stem, 1
        while label.casefold() in taken or (number > 1 and label.casefold() in reserved):
            number += 1
            label = f"{stem}-{number}"
        taken.add(label.casefold())
        labels.append(label)
    return labels


LOSSES, STOPPED = 3, 130  # exit codes: done with losses that were told, and ended by Ctrl-C
_BEGINNING = 60  # signs of a text that are shown


class Step(Protocol):
    """Called at the start of each piece of work with what it is."""

    def __call__(self, what: str) -> None:
        """Move on by one."""


@contextmanager
def stopping(words: Callable[[], str]) -> Iterator[None]:
    """After Ctrl-C, say what is kept and how to go on.

    Args:
        words: Asked for the sentence when it is needed.
    """
    try:
        yield
    except KeyboardInterrupt:
        complain(f"Stopped. {words()}")
        raise


@contextmanager
def told_once() -> Iterator[None]:
    """Keep warnings of the library apart from the screen, where the command tells the same in a sentence of its own."""
    with warnings.catch_warnings():
        for sentence in ("[0-9]+ of [0-9]+ samples could not be judged", "Texts of up to [0-9]+ tokens were cut"):
            warnings.filterwarnings("ignore", sentence, MhexWarning)
        yield


def say(text: object) -> None:
    """Print text, of one line or several, on standard output."""
    _write(printable(text), sys.stdout)


def complain(sentence: str) -> None:
    """One line on standard error; line breaks in it become spaces."""
    _write(f"mhex: {one_line(sentence)}", sys.stderr)


def _write(text: str, stream: TextIO) -> None:
    """Write a line; letters that the stream does not know become question marks."""
    encoding = stream.encoding or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding), file=stream)


def beginning(text: str) -> str:
    """The first words of a text in one line, and how many more there are; a long text would flood the terminal."""
    whole, words = one_line(text), len(text.split())
    if len(whole) <= _BEGINNING:
        return whole
    first = whole[:_BEGINNING].rpartition(" ")[0] or whole[:_BEGINNING]
    more = words - len(first.split())
    return f"{first} ... and {more} more words" if more else f"{first}..."


@contextmanager
def told_warnings() -> Iterator[None]:
    """Warnings of mhex are told in one line on standard error, each sentence once."""
    told: set[str] = set()
    with warnings.catch_warnings():
        usual = warnings.showwarning
        if not sys.warnoptions:  # the user's own choice
            warnings.simplefilter("always", MhexWarning)

        def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
            if not issubclass(category, MhexWarning):
                usual(message, category, *place, **more)
            elif str(message) not in told:
                told.add(str(message))
                complain(f"warning: {message}")

        warnings.showwarning = show
        yield


def show_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    prose: Collection[str] = (),
    several: Collection[str] = (),
) -> None:
    """Print a table: aligned below its title for people, with tabs between for other programs.

    Args:
        title: Of the table.
        columns: Headings.
        rows: Cells; shown as they are, never read as markup.
        prose: Headings of descriptions, which may be shortened.
        several: Headings of cells with several words or names, which may be broken between these.
    """
    pass

    table, width = Table(columns, [[one_line(cell) for cell in row] for row in rows], prose, several), _width()
    say(table.plain() if width is None else f"{one_line(title)}\n\n{table.fitted(width)}")


def _width() -> int | None:
    """Signs in a line of the terminal; None if standard output is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


@contextmanager
def busy(what: str) -> Iterator[None]:
    """A spinner on standard error while something of unknown length runs; silent if nobody watches."""
    console = _watcher()
    if console is None:
        yield
        return
    from rich.text import Text

    with console.status(Text(one_line(what))):
        yield


@contextmanager
def steps(total: int) -> Iterator[Step]:
    """A progress bar over `total` pieces of work on standard error; silent if nobody watches.

    Long work inside shows a bar of its own below.
    """
    console, begun = _watcher(), False
    with progress_bar(total, console is not None, console=console) as bar:

        def step(what: str) -> None:
            nonlocal begun
            bar.say(what)
            if begun:
                bar.advance()
            begun = True

        yield step


def _watcher() -> Console | None:
    from rich.console import Console

    console = Console(stderr=True)
    return console if console.is_terminal else None
