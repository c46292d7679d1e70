"""One progress interface: silent unless asked."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeVar

from mhex._printable import one_line

if TYPE_CHECKING:
    from rich.progress import Progress

T = TypeVar("T")
_OPEN: ContextVar[Progress | None] = ContextVar("open display", default=None)


def track(steps: Iterable[T], description: str, enabled: bool) -> Iterator[T]:
    """Iterate over `steps`, drawing a progress bar on standard error when `enabled`, or a line of the open display."""
    if not enabled:
        yield from steps
        return
    description = _as_it_is(description)
    if (display := _OPEN.get()) is not None:
        # Two displays would write over each other.
        line = display.add_task(description, total=len(steps) if isinstance(steps, Sized) else None)
        try:
            for step in steps:
                yield step
                display.advance(line)
        finally:
            display.remove_task(line)
        return
    state = random.getstate()  # loading rich draws from it
    from rich.console import Console
    from rich.progress import Progress

    random.setstate(state)
    with Progress(console=Console(stderr=True), transient=True) as bar:
        yield from bar.track(steps, description=description)


def _as_it_is(description: str) -> str:
    """A description that is not read as markup; names in it are the user's."""
    state = random.getstate()  # loading rich draws from it
    from rich.markup import escape

    random.setstate(state)
    return escape(one_line(description))


@contextmanager
def inside(display: Progress) -> Iterator[None]:
    """Let every `track` draw its bar as a line of this display, for the time of the context."""
    token = _OPEN.set(display)
    try:
        yield
    finally:
        _OPEN.reset(token)


def watched() -> bool:
    """True inside an open display, so that long work should say how far it is."""
    return _OPEN.get() is not None
