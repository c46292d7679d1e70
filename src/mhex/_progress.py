"""One progress interface: silent unless asked."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def track(steps: Iterable[T], description: str, enabled: bool) -> Iterator[T]:
    """Iterate over `steps`, drawing a progress bar on standard error when `enabled`."""
    if not enabled:
        yield from steps
        return
    state = random.getstate()  # loading rich draws from it
    from rich.console import Console
    from rich.progress import Progress

    random.setstate(state)
    with Progress(console=Console(stderr=True), transient=True) as bar:
        yield from bar.track(steps, description=description)
