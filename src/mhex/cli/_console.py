"""What the command line shows: tables on standard output, progress and complaints on standard error."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from mhex._progress import progress_bar

if TYPE_CHECKING:
    from rich.console import Console

LOSSES, STOPPED = 3, 130  # exit codes: done with losses that were told, and ended by Ctrl-C
_PLAIN_WIDTH = 100_000  # of tables in files and pipes, where folded paths would be of no use to other programs


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
    from mhex.errors import MhexWarning

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "[0-9]+ of [0-9]+ samples could not be judged", MhexWarning)
        yield


def complain(sentence: str) -> None:
    """One line on standard error; line breaks in it become spaces."""
    print(f"mhex: {' '.join(sentence.split())}", file=sys.stderr)


def printable(text: object) -> str:
    """Text that any stream and file takes: bytes of a file name that are no letters become question marks."""
    return str(text).encode("utf-8", "replace").decode("utf-8")


def show_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], note: str = "") -> None:
    """Print a table; cells are shown as they are, never read as markup."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", caption=note or None, caption_justify="left")
    for name in columns:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    Console(width=None if sys.stdout.isatty() else _PLAIN_WIDTH).print(table)


@contextmanager
def busy(what: str) -> Iterator[None]:
    """A spinner on standard error while something of unknown length runs; silent if nobody watches."""
    console = _watcher()
    if console is None:
        yield
        return
    with console.status(what):
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
