"""What a sample by each method costs: guessed from passes, then measured; and who is too slow for a budget."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from mhex.bench.budget import spoken
from mhex.bench.plan import Judged
from mhex.registry import get_method

AIM = 10  # samples for all before the first leave: flips of fewer signs show nothing that holds for twenty methods
_DOUBT = 2  # a guess may be so far off
_LIMIT = 0.2  # of the budget is the most that so many samples by one method may cost, where there are many methods
_ALL = 0.8  # and so much where it is the only one
_FAR = 2.5  # times the mean cost of the others is more than a fair share
_MAPS = 3  # of each sample: of its class, of another, and with noise
_UNKNOWN = 400.0  # forward passes that a method is taken to need for a map, if it does not say


@dataclass
class Costs:
    """Of a race.

    Attributes:
        budget: Seconds.
        methods: How many wanted to race.
        seconds: What a sample by each takes to explain and judge.
    """

    budget: float
    methods: int
    seconds: dict[str, float] = field(default_factory=dict)
    _seen: dict[str, int] = field(default_factory=dict)

    @property
    def limit(self) -> float:
        """Seconds that a sample by one method may take."""
        return max(_LIMIT, _ALL / self.methods) * self.budget / AIM

    def note(self, name: str, seconds: float) -> None:
        """A measured cost; the first is forgotten as soon as there is a second, because it may hold a cold start."""
        seen = self._seen.get(name, 0)
        self.seconds[name] = seconds if seen < 2 else (self.seconds[name] + seconds) / 2
        self._seen[name] = seen + 1

    def drop(self, name: str) -> None:
        """One who is out of the race."""
        self.seconds.pop(name, None)

    def total(self, who: list[Judged]) -> float:
        """Seconds of a sample by all of these."""
        return sum(self.seconds[one.label] for one in who)

    def hopeless(self, guess: float) -> bool:
        """Whether a method is too slow to be tried, if a guess is worth anything."""
        return guess > _DOUBT * self.limit

    def over(self, methods: list[Judged]) -> list[Judged]:
        """Methods that take longer than one may, and far longer than the others: on a slow machine all take long."""
        found = []
        for one in methods:
            others = [other for other in methods if other is not one]
            fair = _FAR * self.total(others) / len(others) if others else math.inf
            if self.seconds[one.label] > max(self.limit, fair):
                found.append(one)
        return found

    def crowding(self, methods: list[Judged], time: float) -> list[Judged]:
        """Slow methods that keep all others from having enough samples, the slowest first.

        Args:
            methods: That were tried.
            time: Seconds that these samples may take.
        """
        ordered = sorted(methods, key=lambda one: self.seconds[one.label])
        found = []
        while len(ordered) > 2 and (AIM - 1) * self.total(ordered) > time:
            *others, slowest = ordered
            if self.seconds[slowest.label] <= _FAR * self.total(others) / len(others):
                break
            found.append(slowest)
            ordered = others
        return found

    def needed(self, seconds: float) -> float:
        """A budget, in seconds, that is enough for a method with so many seconds for a sample."""
        return seconds * self.budget / self.limit


def no_time(budget: float, needed: dict[str, float]) -> str:
    """A sentence for a race that nobody can begin.

    Args:
        budget: That was given, in seconds.
        needed: For each method, a budget that would do, in seconds.
    """
    name = min(needed, key=needed.__getitem__)
    which = f"all of {len(needed)}; the quickest, {name}," if len(needed) > 1 else f"{name}, which"
    return (
        f"Expected a budget that is enough for one method at least, but {spoken(budget)} is too short for {which} "
        f"needs about {spoken(needed[name])}. Give a longer budget, name quicker methods, or try again if the machine "
        "is busy."
    )


def too_slow(seconds: float, needed: float, tried: bool = True) -> str:
    """A sentence on a method that is.

    Args:
        seconds: For a sample.
        needed: A budget that would do, in seconds.
        tried: Whether that was measured.
    """
    about = "takes" if tried else "would take about"
    return (
        f"a sample {about} {spoken(seconds)} to explain and judge; {AIM} of them, beside the others, need a budget of "
        f"about {spoken(needed)}"
    )


def guessed(one: Judged, forward: float) -> float:
    """Seconds that a sample may take.

    Args:
        one: The method.
        forward: Seconds of a forward pass of one sample.
    """
    return _MAPS * passes(one) * forward


def passes(one: Judged) -> float:
    """About how many forward passes a map takes: what the method says, or the largest number among its options."""
    if one.control:
        return 0.0
    method = get_method(one.name)
    if method.budget is not None and method.budget[1] in ("F", "F+B"):
        return method.budget[0] * (1 if method.budget[1] == "F" else 3)
    options = {**method.options, **one.options}.values()
    numbers = [value for value in options if isinstance(value, int) and not isinstance(value, bool)]
    # With a backward pass each, where the method says so.
    return float(max(numbers, default=0)) * (3 if "B" in method.passes else 1) or _UNKNOWN
