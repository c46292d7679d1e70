"""A race of methods under a time budget: successive halving on the same images for all who are still in it."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from mhex.errors import ArgumentError, CaptureError, MissingExtraError, UnsupportedModelError
from mhex.inputs.samples import PIECE, Pieces, Samples
from mhex.judge.cases import Run
from mhex.judge.controls import RANDOM
from mhex.judge.evaluation import judge_batch
from mhex.judge.plan import Judged
from mhex.judge.report import Report
from mhex.judge.store import Parts
from mhex.methods import get_method
from mhex.perturb import Subject
from mhex.recommend.score import Score

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


_CANNOT = (UnsupportedModelError, CaptureError, MissingExtraError)
_TRYING = 0.4  # of the budget at most is spent on the first image, by which costs are learnt
_AGAIN = 0.1  # and so much on a second try of those that seem too slow
_WARM = 0.02  # and so much on timing plain forward passes, unless they differ, as on a busy machine
_PASSES, _ALIKE = 5, 2.0  # so many of them at most, and how far apart the two quickest may be
_FIRST, _MOST = 0.4, 0.75  # of what is left then goes to the first round, and up to so much if samples are few


@dataclass
class Race:
    """Who is in it, who is out, and what was measured.

    Attributes:
        run: What does not change from image to image.
        score: By what methods are raced.
        pieces: The samples.
        watch: The budget.
        entrants: Methods and control maps, all.
        reserve: Seconds of the budget that are kept for what comes after the race.
        say: Told what is being done.
        left_out: Those that were never raced, and why.
        too_slow: Those of them that the budget has no time for, and one, in seconds, that would have it.
        rounds: For each round: how many methods began it, and how many images they had at its end.
        last: Methods of the last round.
        enough: A budget, in seconds, by which all would have enough images in the first round; None if they had.
    """

    run: Run
    score: Score
    pieces: Pieces
    watch: Watch
    entrants: list[Judged]
    reserve: float = 0.0
    say: Callable[[str], None] = lambda text: None
    left_out: dict[str, str] = field(default_factory=dict)
    too_slow: dict[str, float] = field(default_factory=dict)
    rounds: list[tuple[int, int]] = field(default_factory=list)
    last: list[str] = field(default_factory=list)
    enough: float | None = None
    costs: Costs = field(init=False)
    _stage: str = ""  # of the race, in words
    _place: int = 1  # of the next piece
    _has: set[tuple[int, str]] = field(default_factory=set)  # pieces, and methods that were judged on them early

    def __post_init__(self) -> None:
        self.costs = Costs(self.watch.budget, max(1, sum(not one.control for one in self.entrants)))

    @property
    def report(self) -> Report:
        """All rows so far."""
        return Report(self.run.parts.table(), self.curves, self.lost)

    @property
    def lost(self) -> dict[int, str]:
        """Samples that could not be read or judged, and why, by their number in the data."""
        order = self.pieces.order
        lost = {**self.pieces.unread, **self.run.lost}
        return {place if order is None else order[place]: reason for place, reason in lost.items()}

    @property
    def curves(self) -> Any:
        """An arrow table of curves; None if the score reads none."""
        kept = self.run.curves
        return kept.table() if kept is not None and kept.tables else None

    @property
    def raced(self) -> list[Judged]:
        """Methods and control maps that have a cost, and so were not left out."""
        return [one for one in self.entrants if one.label in self.costs.seconds]

    def go(self) -> None:
        """Race until the budget is used, the data is at its end, or one method is left."""
        self._try_all(self._first(), self._forward())
        alive = sorted(self.raced, key=lambda one: not one.control)  # what all share is in the time of the first
        methods = self._methods
        if not methods:
            return
        rounds = max(1, math.ceil(math.log2(max(2, len(methods)))))
        for number in range(rounds):
            self._stage = f"round {number + 1} of {rounds}: {len(methods)} methods"
            self.say(self._stage)
            going = self._round(alive, self._until(number, rounds, alive))
            if number == 0:
                self.score = self.score.with_units(self.report, [one.label for one in methods])
                if self._images(methods) < AIM and self.pieces.get(self._place) is not None:
                    self.enough = self._enough(alive)
            self.rounds.append((len(methods), self._images(methods)))
            self.last = [one.label for one in methods]
            if not going:
                return
            if len(methods) > 2:
                alive, methods = self._half(alive, methods)

    def _first(self) -> Samples:
        first = self.pieces.get(0)
        assert first is not None  # empty data is refused before
        return first

    def _forward(self) -> float:
        """Seconds of a forward pass of one image, the least of some, because the first ones load things."""
        run, samples = self.run, self._first()
        reading: Any = {"preprocess": run.preprocess, "tokenizer": run.tokenizer, "outputs": run.outputs}
        subject = Subject(run.model, samples.inputs, **reading)
        taken = [math.inf] if subject.logits.numel() else []
        begun = self.watch.clock()
        while len(taken) < 2 or (
            len(taken) < _PASSES
            and self.watch.clock() - begun < (_WARM if _alike(taken) else _AGAIN) * self.watch.budget
        ):
            seconds = self.watch.timer()
            for _ in subject.run(1, lambda jobs: subject.variants(subject.main, jobs)):
                pass
            taken.append(seconds())
        return min(taken)

    def _try_all(self, first: Samples, forward: float) -> None:
        """One image by everybody, the cheap ones first; who is too slow for the budget is left out."""
        budget, ordered = self.watch.budget, sorted(self.entrants, key=lambda one: (not one.control, passes(one)))
        self._rehearse(first, [one for one in ordered if not self.costs.hopeless(guessed(one, forward))])
        spent, unsure = 0.0, True
        for one in ordered:
            if unsure and self.costs.hopeless(guessed(one, forward)):
                # Nobody leaves because the machine was busy for a moment.
                again = self._forward()
                forward, unsure = min(forward, again), again * _ALIKE < forward
            guess = guessed(one, forward)
            if not one.control and self.costs.hopeless(guess):
                self._slow(one, guess, self.costs.needed(guess), tried=False)
            elif not one.control and (spent + guess > _TRYING * budget or guess > self.watch.left - self.reserve):
                self.left_out[one.label] = f"there was no time to try it; give a budget of about {spoken(2 * budget)}"
                self.too_slow[one.label] = 2 * budget
            else:
                self.say(f"trying {one.label}")
                self._try(first, one)
                spent += len(first.ids) * self.costs.seconds.get(one.label, 0.0)  # without waits for other processes
        self._leave_out()

    def _leave_out(self) -> None:
        """Send away those that are too slow by what was measured."""
        for one in self.costs.over(self._methods):
            # It may have been slow once: the machine was busy, or something was loaded.
            piece, seconds = self.pieces.get(1), self.costs.seconds[one.label]
            until = (_TRYING + _AGAIN) * self.watch.budget
            if piece is not None and self.watch.used + len(piece.ids) * seconds < until:
                self._judge(1, piece, [one])
        for one in self.costs.over(self._methods):
            seconds = self.costs.seconds[one.label]
            self._slow(one, seconds, self.costs.needed(seconds))
        enough = self._enough(self.raced)
        for one in self.costs.crowding(self._methods, _MOST * (self.watch.left - self.reserve)):
            self._slow(one, self.costs.seconds[one.label], enough)

    @property
    def _methods(self) -> list[Judged]:
        return [one for one in self.raced if not one.control]

    def _enough(self, who: list[Judged]) -> float:
        """A budget, in seconds, by which all of these would have enough images in the first round."""
        return max(1.2 * self.watch.budget, AIM * self.costs.total(who) / _MOST + self.reserve)

    def _rehearse(self, first: Samples, methods: list[Judged]) -> None:
        """Judge by the first method that can, and forget it: what is loaded on the way is in nobody's cost."""
        aside = replace(self.run, parts=Parts(None, self.run.parts.told), curves=None, shown=None, skipped={})
        for one in methods:
            if one.control:
                continue
            try:
                judge_batch(aside, first, [one], [self.score.judge], progress=False)
            except _CANNOT:
                continue  # it is told why when it is tried
            return

    def _try(self, first: Samples, one: Judged) -> None:
        try:
            self._judge(0, first, [one])
        except _CANNOT as error:
            self.left_out[one.label] = error.reason if isinstance(error, UnsupportedModelError) else str(error)

    def _slow(self, one: Judged, seconds: float, needed: float, tried: bool = True) -> None:
        self.left_out[one.label], self.too_slow[one.label] = too_slow(seconds, needed, tried), needed
        self.costs.drop(one.label)

    def _until(self, number: int, rounds: int, alive: list[Judged]) -> float:
        """When a round ends, in seconds since the start."""
        left = max(0.0, self.watch.left - self.reserve)
        if number == rounds - 1:
            share = left
        elif number:
            share = left / (rounds - number)
        else:
            pieces = math.ceil((AIM - 1) / PIECE)
            share = min(_MOST * left, max(_FIRST * left, 1.1 * pieces * PIECE * self.costs.total(alive)))
        return self.watch.used + share

    def _round(self, alive: list[Judged], until: float) -> bool:
        """More images for all who are in, until a time; whether there are more of them, and time."""
        while (piece := self.pieces.get(self._place)) is not None:
            if self.watch.used + len(piece.ids) * self.costs.total(alive) > until:
                return True
            if not self._judge(self._place, piece, alive):
                return False
            self._place += 1
        return False

    def _judge(self, place: int, samples: Samples, who: list[Judged]) -> bool:
        """Judge these on a piece; False if time ran out, and some of them are not judged on it."""
        size, whole = len(samples.ids), True

        def watched() -> Iterator[Judged]:
            nonlocal whole
            for one in who:
                if (place, one.label) in self._has:
                    continue
                if place and self.watch.left - self.reserve < size * self.costs.seconds[one.label]:
                    whole = False
                    return
                if place:
                    self.say(f"{self._stage}, {one.label} on sample {samples.ids[-1] + 1}")
                seconds = self.watch.timer()
                yield one
                self.costs.note(one.label, seconds() / size)
                self._has.add((place, one.label))

        judge_batch(self.run, samples, watched(), [self.score.judge], progress=False)
        return whole

    def _half(self, alive: list[Judged], methods: list[Judged]) -> tuple[list[Judged], list[Judged]]:
        """Who goes on: all, and the methods among them."""
        means = self._means(alive)
        methods = sorted(methods, key=lambda one: -means[one.label])[: max(2, math.ceil(len(methods) / 2))]
        # Random maps stay, for the tests; the other controls go when they are behind all.
        floor = means[methods[-1].label]
        controls = [one for one in alive if one.control and (one.label == RANDOM or means[one.label] >= floor)]
        return [*controls, *methods], methods

    def _images(self, who: list[Judged]) -> int:
        """Images that count for all of these."""
        values = self.score.values(self.report)
        return int(torch.stack([values[one.label].isfinite() for one in who]).all(0).sum())

    def _means(self, who: list[Judged]) -> dict[str, float]:
        """Mean score of each, on the images that all of these have."""
        values = self.score.values(self.report)
        table = torch.stack([values[one.label] for one in who])
        means = table[:, table.isfinite().all(0)].mean(1)
        return dict(zip((one.label for one in who), means.tolist(), strict=True))


def _alike(taken: list[float]) -> bool:
    """Whether the two least of some times are about the same, so that the least can be believed."""
    least, second = sorted(taken)[:2]
    return second <= _ALIKE * least
