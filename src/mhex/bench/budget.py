"""A time budget: read from what people write, and kept."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable

from mhex.errors import ArgumentError

Clock = Callable[[], float]
_SHORT = 0.1  # seconds below which the time at work may be too coarse
_WAITING = 4  # times the time at work is what a machine that others use too may take
_UNITS = {"s": 1, "sec": 1, "second": 1, "m": 60, "min": 60, "minute": 60, "h": 3600, "hour": 3600}


def seconds_of(budget: float | str) -> float:
    """Seconds of a budget: a number of them, or text such as `"90"`, `"90 s"`, `"2 min"`, `"2m"` or `"1 h"`."""
    text = str(budget) if isinstance(budget, (int, float)) and not isinstance(budget, bool) else budget
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text.lower()) if isinstance(text, str) else None
    unit = None if found is None else found[2] if found[2] in ("", *_UNITS) else found[2].removesuffix("s")
    if found is None or unit not in ("", *_UNITS):
        raise ArgumentError(f"Expected a budget in seconds, or text such as '2 min', but got {budget!r}.")
    seconds = float(found[1]) * _UNITS.get(unit or "s", 1)
    if not 0 < seconds < math.inf:
        raise ArgumentError(f"Expected a budget of more than 0 seconds, but got {budget!r}.")
    return seconds


def spoken(seconds: float) -> str:
    """A time in two figures: `"35 ms"`, `"1.2 s"`, `"2.5 min"`, `"3.1 h"`."""
    if seconds < 0.9995:
        return f"{_two(1000 * seconds)} ms"
    if seconds < 99.5:
        return f"{_two(seconds)} s"
    return f"{_two(seconds / 60)} min" if seconds < 99.5 * 60 else f"{_two(seconds / 3600)} h"


def _two(value: float) -> str:
    digits = 0 if value <= 0 else max(0, 1 - math.floor(math.log10(value)))
    return f"{value:.{min(digits, 2)}f}"


class Watch:
    """Time since the start of a budget.

    Args:
        budget: Seconds.
        clock: From nothing to seconds; `time.perf_counter` unless a test has its own.
        work: The same for the time that this process was at work, not waiting for its turn on a busy machine; None
            where that is not known, as for work on a GPU.
    """

    def __init__(self, budget: float, clock: Clock = time.perf_counter, work: Clock | None = None) -> None:
        self.budget, self.clock, self.work = budget, clock, work
        self.started = clock()

    def timer(self) -> Clock:
        """Starts to measure; what it gives are the seconds since then, without long waits for other processes."""
        clock, work = self.clock, self.work
        begun, busy = clock(), 0.0 if work is None else work()

        def seconds() -> float:
            passed = clock() - begun
            if work is None or passed < _SHORT:
                return passed
            return min(passed, max(_SHORT, _WAITING * (work() - busy)))

        return seconds

    @property
    def used(self) -> float:
        """Seconds since the start."""
        return self.clock() - self.started

    @property
    def left(self) -> float:
        """Seconds that are left; below 0 when all are used."""
        return self.budget - self.used
