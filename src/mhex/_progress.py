"""One progress interface: silent unless asked, or where nobody watches."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

from mhex._printable import one_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

T = TypeVar("T")
_OPEN: ContextVar[Progress | None] = ContextVar("open display", default=None)


class Bar:
    """A line of a progress display; without one, a line that nobody sees."""

    def __init__(self, display: Progress | None = None, line: TaskID | None = None) -> None:
        self._display, self._line = display, line

    def say(self, words: str) -> None:
        """Show what is being done."""
        if self._display is not None:
            self._update(description=_unmarked(words))

    def advance(self, count: float = 1) -> None:
        """Move on."""
        self._update(advance=count)

    def reach(self, place: float) -> None:
        """Move to a place."""
        self._update(completed=place)

    def _update(self, **changes: Any) -> None:
        if self._display is not None and self._line is not None:
            self._display.update(self._line, **changes)


def _unmarked(description: str) -> str:
    """A description that is not read as markup; names in it are the user's."""
    state = random.getstate()  # loading rich draws from it
    from rich.markup import escape

    random.setstate(state)
    return escape(one_line(description))


@contextmanager
def progress_bar(
    total: float | None, enabled: bool, words: str = "", unit: str = "", console: Console | None = None
) -> Iterator[Bar]:
    """A line of the open display, or of a new one on standard error, into which long work inside draws its own lines.

    The total is where it ends, None if that is not known. The words say what is being done.
    """
    if not enabled:
        yield Bar()
        return
    display = _OPEN.get()
    if display is None:  # two displays would write over each other
        with _display(console) as opened:
            token = _OPEN.set(opened)
            try:
                with progress_bar(total, True, words, unit) as bar:
                    yield bar
            finally:
                _OPEN.reset(token)
        return
    line = display.add_task(_unmarked(words), total=total, unit=unit)
    try:
        yield Bar(display, line)
    finally:
        display.remove_task(line)


def track(steps: Iterable[T], description: str, enabled: bool) -> Iterator[T]:
    """Iterate over `steps`, drawing a progress bar when `enabled`."""
    if not enabled:
        yield from steps
        return
    with progress_bar(len(steps) if isinstance(steps, Sized) else None, enabled, description) as bar:
        for step in steps:
            yield step
            bar.advance()


def is_watched(progress: bool | None) -> bool:
    """Whether to draw progress bars: as asked, or, for None, if somebody looks at a terminal or a notebook."""
    if progress is not None:
        return progress
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    # The kernel of a notebook can show bars if it has ipywidgets.
    notebook = type(shell).__name__ == "ZMQInteractiveShell" and find_spec("ipywidgets") is not None
    return sys.stderr.isatty() or notebook


def watched() -> bool:
    """True inside an open display, so that long work should say how far it is."""
    return _OPEN.get() is not None


def _display(console: Console | None) -> Progress:
    state = random.getstate()  # loading rich draws from it
    from rich import progress
    from rich.console import Console
    from rich.table import Column

    random.setstate(state)
    # What is being done comes last, because it is cut off in narrow terminals.
    words = Column(ratio=1, no_wrap=True, overflow="ellipsis")
    columns: list[progress.ProgressColumn] = [
        progress.SpinnerColumn(),
        progress.BarColumn(bar_width=12),
        progress.MofNCompleteColumn(),
        progress.TextColumn("{task.fields[unit]}"),
        progress.TimeRemainingColumn(elapsed_when_finished=True),
        progress.TextColumn("{task.description}", table_column=words),
    ]
    return progress.Progress(*columns, console=console or Console(stderr=True), transient=True, expand=True)
