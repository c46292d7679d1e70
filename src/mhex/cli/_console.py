"""What the command line shows: tables on standard output, progress and complaints on standard error.

Everything that is printed passes through here, because texts, file names and names of classes may hold signs that a
terminal obeys.
"""

from __future__ import annotations

import shutil
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from mhex._printable import one_line, printable
from mhex._progress import progress_bar
from mhex.errors import MhexWarning

if TYPE_CHECKING:
    from rich.console import Console

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
        warnings.filterwarnings("ignore", "[0-9]+ of [0-9]+ samples could not be judged", MhexWarning)
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
    from mhex.cli._table import Table

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
