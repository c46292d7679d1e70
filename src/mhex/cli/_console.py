"""The output of the command line: tables on standard output, progress and complaints on standard error.

Everything that is printed passes through here, because texts, file names and names of classes may hold signs that a
terminal obeys.
"""

from __future__ import annotations

import itertools
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rich.cells import cell_len

from mhex import _files
from mhex._printable import one_line, printable
from mhex._progress import progress_bar
from mhex.errors import MhexWarning

if TYPE_CHECKING:
    from rich.console import Console

LOSSES, STOPPED = 3, 130  # exit codes: done with losses that were named, and ended by Ctrl-C
Step = Callable[[str], None]  # called at the start of each piece of work with its description
_BEGINNING = 60  # signs of a text that are printed
_GAP = "  "
_INDENT = "    "


@dataclass(frozen=True)
class Table:
    """Headings, and rows with a cell for each; a cell is one line. Some signs take two places of a line, or none.

    Cells below the headings `prose` may be broken between words. Other cells are never broken, so that names can be
    copied.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    prose: Collection[str] = ()

    def plain(self) -> str:
        """Headings and rows, with tabs between the cells."""
        return "\n".join("\t".join(row) for row in (self.columns, *self.rows))

    def fitted(self, width: int) -> str:
        """The table in lines of `width` signs; columns without room go below each row. Longer names go beyond."""
        columns = zip(self.columns, *self.rows, strict=True)
        widths = {place: max(map(cell_len, cells)) for place, cells in enumerate(columns)}
        while len(widths) > 1 and _total(widths) > width:  # the widest columns go below; the first one stays
            del widths[max((place for place in widths if place), key=lambda place: (widths[place], place))]
        lines = [_line(self.columns, widths), "-" * min(width, _total(widths))]
        for row in self.rows:
            lines.append(_line(row, widths))
            lines += self._below([(self.columns[k], cell) for k, cell in enumerate(row) if k not in widths], width)
        return "\n".join(lines)

    def _below(self, cells: Sequence[tuple[str, str]], width: int) -> list[str]:
        """Lines with the cells that are not empty and their headings, as many in a line as it takes."""
        lines: list[str] = []
        for heading, cell in cells:
            text = f"{heading}: {cell}"
            if not cell:
                continue
            if lines and cell_len(f"{lines[-1]} | {text}") <= width:
                lines[-1] += f" | {text}"
                continue
            first, *words = text.split(" ") if heading in self.prose else [text]
            lines.append(_INDENT + first)
            for word in words:
                if cell_len(f"{lines[-1]} {word}") <= width:
                    lines[-1] += f" {word}"
                else:
                    lines.append(2 * _INDENT + word)
        return lines


def _line(row: Sequence[str], widths: dict[int, int]) -> str:
    return _GAP.join(row[place] + " " * (size - cell_len(row[place])) for place, size in widths.items()).rstrip()


def _total(widths: dict[int, int]) -> int:
    return sum(widths.values()) + len(_GAP) * (len(widths) - 1)


def show_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], *, prose: Collection[str] = ()
) -> None:
    """Print a table: aligned below its title for people, with tabs between for other programs."""
    table, width = Table(columns, [[one_line(cell) for cell in row] for row in rows], prose), _width()
    say(table.plain() if width is None else f"{one_line(title)}\n\n{table.fitted(width)}")


def _width() -> int | None:
    """Signs in a line of the terminal; None if standard output is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def output_folder(folder: Path) -> Path:
    """Make sure that a folder exists and can be written to, before any work is spent."""
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
    labels: dict[str, str] = {}  # by what tells them apart
    # A stem that is its own label must not lose it to a numbered one that comes first.
    reserved = {stem.casefold() for stem in stems}
    for stem in stems:
        label, number = stem, 1
        while label.casefold() in labels or (number > 1 and label.casefold() in reserved):
            number += 1
            label = f"{stem}-{number}"
        labels[label.casefold()] = label
    return list(labels.values())


def say(text: object) -> None:
    """Print text, of one line or several, on standard output."""
    _write(printable(text), sys.stdout)


def complain(sentence: str) -> None:
    """Print one line on standard error; line breaks in it become spaces."""
    _write(f"mhex: {one_line(sentence)}", sys.stderr)


def _write(text: str, stream: TextIO) -> None:
    """Write a line; letters that the stream does not know become question marks."""
    encoding = stream.encoding or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding), file=stream)


def beginning(text: str) -> str:
    """The first words of a text in one line, and how many more there are; a long text would flood the terminal."""
    line, words = one_line(text), len(text.split())
    if len(line) <= _BEGINNING:
        return line
    first = line[:_BEGINNING].rpartition(" ")[0] or line[:_BEGINNING]
    more = words - len(first.split())
    return f"{first} ... and {more} more words" if more else f"{first}..."


@contextmanager
def stopping(words: Callable[[], str]) -> Iterator[None]:
    """After Ctrl-C, print what is kept and how to go on; `words` is asked for the sentence when it is needed."""
    try:
        yield
    except KeyboardInterrupt:
        complain(f"Stopped. {words()}")
        raise


@contextmanager
def without_repeated_warnings() -> Iterator[None]:
    """Hide the library's warnings of lost samples and cut texts, where the command prints a sentence itself."""
    with warnings.catch_warnings():
        for sentence in ("[0-9]+ of [0-9]+ samples could not be judged", "Texts of up to [0-9]+ tokens were cut"):
            warnings.filterwarnings("ignore", sentence, MhexWarning)
        yield


@contextmanager
def warning_lines() -> Iterator[None]:
    """Print warnings of mhex in one line on standard error, each sentence once."""
    sentences: set[str] = set()
    with warnings.catch_warnings():
        usual = warnings.showwarning
        if not sys.warnoptions:  # otherwise the user has chosen
            warnings.simplefilter("always", MhexWarning)

        def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
            if not issubclass(category, MhexWarning):
                usual(message, category, *place, **more)
            elif str(message) not in sentences:
                sentences.add(str(message))
                complain(f"warning: {message}")

        warnings.showwarning = show
        yield


def busy(work: str) -> AbstractContextManager[object]:
    """A spinner on standard error while something of unknown length runs; silent if nobody watches."""
    from rich.text import Text

    console = _watcher()
    return nullcontext() if console is None else console.status(Text(one_line(work)))


@contextmanager
def steps(total: int) -> Iterator[Step]:
    """A progress bar over `total` pieces of work on standard error; silent if nobody watches."""
    console, count = _watcher(), itertools.count()
    with progress_bar(total, console is not None, console=console) as bar:

        def step(work: str) -> None:
            bar.say(work)
            bar.reach(next(count))

        yield step


def _watcher() -> Console | None:
    from rich.console import Console

    console = Console(stderr=True)
    return console if console.is_terminal else None
