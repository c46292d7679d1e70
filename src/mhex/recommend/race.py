"""A race of methods under a time budget: rounds on the same images for all methods that are still in it."""

import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from mhex._settings import check_that
from mhex.bundle import Bundle
from mhex.capture import find_anatomy
from mhex.errors import ArgumentError
from mhex.inputs import Prepared
from mhex.inputs.samples import PIECE, Pieces, Samples, look_for
from mhex.judge.cases import Run, SoundSamples, none_judged
from mhex.judge.controls import PREFIX
from mhex.judge.evaluation import NOT_FINITE, judge_batch
from mhex.judge.plan import EVERY, MethodGiven, MethodRun, method_runs
from mhex.judge.report import Report
from mhex.methods import all_methods, get_method
from mhex.perturb import Subject
from mhex.recommend.elimination import FRESH, Rounds
from mhex.recommend.score import DEFAULT, ScoreGiven, score_of

Clock = Callable[[], float]
NO_TIME = "there was no time to try it"  # the reason of methods that are left out untried
AIM = 10  # samples for all before the first leave: fewer show little that holds for twenty methods
_UNITS = {"": 1, "s": 1, "sec": 1, "second": 1, "m": 60, "min": 60, "minute": 60, "h": 3600, "hour": 3600}
_MIN_TIMED_SECONDS = 0.1  # below it, the clock of the process may be too coarse
_GUESS_ERROR = 2  # a cost guessed from forward passes may be wrong by this factor
_SAMPLE_SHARE = 0.2  # of the budget: the most that AIM samples by one of many methods may cost
_SOLE_METHOD_SHARE = 0.8  # of the budget: the same where there is one method alone
_SLOW_FACTOR = 2.5  # times the mean cost of the other methods: a method above it is slow
_SCORE_MAPS = 3  # maps of a sample where the score explains again: its class, another class, and with noise
_DEFAULT_PASSES = 400.0  # forward passes of a map by a method that does not say how many it needs
_TRIAL_SHARE = 0.4  # of the budget: the most for the first image, by which costs are measured
_RETRY_SHARE = 0.1  # of the budget: the most for a second trial of slow methods
_FORWARD_SHARE = 0.02  # of the budget, for timing plain forward passes; _RETRY_SHARE if they differ on a busy machine
_FORWARD_PASSES = 5  # that are timed at most
_TIMING_RATIO = 2.0  # of the two quickest passes: below it, the quickest can be believed
_FIRST_ROUND_SHARE = 0.4  # of the time after the trials
_FIRST_ROUND_MAX_SHARE = 0.75  # of this time, where the first round has fewer samples than AIM
_TRIAL_OVERHEAD = 1.1  # cost of a sample as tried, method by method, to its cost with all methods, which share passes
_PICTURES = 3  # samples whose maps are saved for the page


def seconds_of(budget: float | str) -> float:
    """Seconds of a budget: a number of them, or text such as `"90"`, `"90 s"`, `"2 min"`, `"2m"` or `"1 h"`."""
    text = str(budget) if isinstance(budget, (int, float)) and not isinstance(budget, bool) else budget
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text.lower()) if isinstance(text, str) else None
    unit = "" if match is None else match[2] if match[2] in _UNITS else match[2].removesuffix("s")
    if match is None or unit not in _UNITS:
        raise ArgumentError(f"Expected a budget in seconds, or text such as '2 min', but got {budget!r}.")
    seconds = float(match[1]) * _UNITS[unit]
    check_that(0 < seconds < math.inf, "a budget of more than 0 seconds", repr(budget))
    return seconds


def spoken(seconds: float) -> str:
    """A time in two figures: `"35 ms"`, `"1.2 s"`, `"2.5 min"`, `"3.1 h"`."""
    if seconds < 99.5:
        value, unit = (1000 * seconds, "ms") if seconds < 0.9995 else (seconds, "s")
    else:
        value, unit = (seconds / 60, "min") if seconds < 99.5 * 60 else (seconds / 3600, "h")
    digits = 0 if value <= 0 else max(0, 1 - math.floor(math.log10(value)))
    return f"{value:.{min(digits, 2)}f} {unit}"


class Budget:
    """A time budget, in seconds by a clock, that runs from now on.

    `work` is a clock of the time that this process was at work, not waiting for its turn on a busy machine; None where
    that is not known, as for work on a GPU. Threads at work at the same time are all counted, so that a wait is seen
    where all of them together had less than one core.
    """

    def __init__(self, seconds: float, clock: Clock = time.perf_counter, work: Clock | None = None) -> None:
        self.seconds, self.clock, self.work = seconds, clock, work
        self.reserve = 0.0  # seconds that are kept for what comes after the race
        self._passed = self._counted = 0.0  # seconds of all that was timed, with waits and without
        self.started = clock()

    def timer(self) -> Clock:
        """Start to measure: the function gives the seconds since then, without waits for other processes."""
        begun, busy = self.clock(), 0.0 if self.work is None else self.work()

        def seconds() -> float:
            counted = passed = self.clock() - begun
            if self.work is not None and passed >= _MIN_TIMED_SECONDS:
                counted = min(passed, max(_MIN_TIMED_SECONDS, self.work() - busy))
            self._passed += passed
            self._counted += counted
            return counted

        return seconds

    @property
    def load(self) -> float:
        """How many times as long as on a machine without other work all took that was timed; 1 where not known."""
        return self._passed / self._counted if self._counted > 0 else 1.0

    @property
    def used(self) -> float:
        """Seconds since the start."""
        return self.clock() - self.started

    @property
    def remaining(self) -> float:
        """Seconds that remain without the reserve; below 0 when all are used."""
        return self.seconds - self.used - self.reserve


@dataclass
class Costs:
    """What samples cost in a race."""

    budget: float  # seconds of the race
    methods: int  # that wanted to race
    seconds: dict[str, float] = field(default_factory=dict)  # to explain and judge a sample, by label of the method
    _visits: dict[str, int] = field(default_factory=dict)

    @property
    def limit(self) -> float:
        """Seconds that a sample by one method may take."""
        return max(_SAMPLE_SHARE, _SOLE_METHOD_SHARE / self.methods) * self.budget / AIM

    def note(self, name: str, seconds: float) -> None:
        """Note a measured cost: the least of the first two, because either may hold a cold start or a wait."""
        visits, before = self._visits.get(name, 0), self.seconds.get(name, seconds)
        self.seconds[name] = min(before, seconds) if visits < 2 else (before + seconds) / 2
        self._visits[name] = visits + 1

    def total(self, methods: Iterable[MethodRun]) -> float:
        """Seconds of a sample by all of these."""
        return sum(self.seconds[method.label] for method in methods)

    def over(self, methods: list[MethodRun]) -> list[MethodRun]:
        """Methods that take longer than they may, and far longer than the others: on a slow machine all take long."""
        slow = []
        for method in methods:
            rivals = [rival for rival in methods if rival is not method]
            fair = _SLOW_FACTOR * self.total(rivals) / len(rivals) if rivals else math.inf
            if self.seconds[method.label] > max(self.limit, fair):
                slow.append(method)
        return slow

    def blocking(self, methods: list[MethodRun], time: float) -> list[MethodRun]:
        """Slow methods without which the others would have enough samples in this time, the slowest first."""
        ordered, slow = sorted(methods, key=lambda method: self.seconds[method.label]), []
        while len(ordered) > 2 and (AIM - 1) * self.total(ordered) > time:
            *quicker, slowest = ordered
            if self.seconds[slowest.label] <= _SLOW_FACTOR * self.total(quicker) / len(quicker):
                break
            slow.append(slowest)
            ordered = quicker
        return slow

    def needed(self, seconds: float) -> float:
        """A budget, in seconds, that is enough for a method with so many seconds for a sample."""
        return seconds * self.budget / self.limit


def passes(method: MethodRun) -> float:
    """About how many forward passes a map takes: what the method says, or the largest number among its options."""
    if method.control:
        return 0.0
    spec = get_method(method.name)
    if spec.budget is not None and spec.budget[1] in ("F", "F+B"):
        return spec.budget[0] * (1 if spec.budget[1] == "F" else 3)
    options = {**spec.options, **method.options}.values()
    numbers = [value for value in options if isinstance(value, int) and not isinstance(value, bool)]
    # With a backward pass each, where the method says so.
    return float(max(numbers, default=0)) * (3 if "B" in spec.passes else 1) or _DEFAULT_PASSES


class Race:
    """Methods on their way through the rounds; see `recommend` and `Recommendation`. Options are those of `Run`."""

    def __init__(
        self,
        model: nn.Module | Bundle,
        pieces: Pieces,
        budget: Budget,
        *,
        methods: str | Iterable[MethodGiven] = "all",
        score: ScoreGiven = DEFAULT,
        **options: Any,
    ) -> None:
        self.pieces, self.budget = pieces, budget
        self.run = run = self._run(model, options)
        if budget.clock is time.perf_counter and run.subject.device.type == "cpu":
            budget.work = time.process_time
        anatomy = find_anatomy(run.model, run.subject.batch)
        self.score = score_of(score, anatomy.modality, run.seed)
        self._maps = _SCORE_MAPS if self.score.metric.spec.explains else 1
        needs = self.score.metric.needs
        for name in needs:
            look_for(name, f"The score {self.score.metric.label!r}", [run.first], iter(()))
        run.needs, run.redraw = frozenset(needs), True
        run.keep(pictures=_PICTURES)
        pieces.change(lambda samples: samples.numbered(run.numbers))
        first = (run.first.numbered(run.numbers), run.prepared)
        self._sound: dict[int, SoundSamples | None] = {0: first}  # the first pieces, which are judged more than once
        entries = [methods] if isinstance(methods, str) else list(methods)
        methods_only = [entry for entry in entries if not str(entry).startswith(PREFIX)]
        advice = ": they take part, and are never recommended"
        check_that(bool(methods_only) or not entries, "methods", "control maps alone", advice)
        self.entrants = method_runs(methods_only, anatomy, controls=True)  # with control maps
        refusals = {spec.name: spec.refusal(anatomy) for spec in all_methods().values() if EVERY in entries}
        self.left_out = {name: why for name, why in refusals.items() if why}
        self.too_slow: dict[str, float] = {}
        self.rounds: Rounds | None = None  # None until all were tried, or where no method can be raced
        self.accuracy: tuple[int, int, int] | None = None  # right classes, samples with a label, number of classes
        self.enough: float | None = None
        self.exhausted = False
        self.costs = Costs(budget.seconds, max(1, sum(not method.control for method in self.entrants)))
        self.say: Callable[[str], None] = lambda text: None
        self._stage = ""  # of the race, in words
        self._place = 1  # of the next piece
        self._answered: set[int] = set()  # pieces whose predicted classes were compared with labels
        self._done: set[tuple[int, str]] = set()  # pieces, and methods that were judged on them early

    def _run(self, model: nn.Module | Bundle, options: Any) -> Run:
        """The run of the first piece whose outputs are finite; samples before it are taken out."""
        losses: dict[int, str] = {}
        while self.pieces.get(0) is not None:
            run = Run(model, self.pieces.leading(), losses, **options)
            finite = run.subject.finite.tolist()
            places = [place for place, fine in enumerate(finite) if fine]
            self.pieces.put(run.first.only(places) if places else None)
            if all(finite):
                return run
            losses.update({i: NOT_FINITE for i, fine in zip(run.first.ids, finite, strict=True) if not fine})
        raise ArgumentError(none_judged(losses))

    @property
    def report(self) -> Report:
        """All rows so far."""
        return Report(self.run.parts.table(), self.run.curves.table(), self.lost, cost=self.run.cost)

    @property
    def lost(self) -> dict[int, str]:
        """Samples that could not be read or judged, and why, by their number in the data."""
        order = self.pieces.order
        losses = {**self.pieces.unread, **self.run.lost}
        return {place if order is None else order[place]: reason for place, reason in losses.items()}

    @property
    def raced(self) -> list[MethodRun]:
        """Methods and control maps that have a cost, and so were not left out."""
        return [method for method in self.entrants if method.label in self.costs.seconds]

    @property
    def _methods(self) -> list[MethodRun]:
        return [method for method in self.raced if not method.control]

    def go(self) -> None:
        """Race until the budget is used, the data is at its end, or one method is left."""
        self._try_all()
        entries = {method.label: method for method in self.raced}
        methods = [method.label for method in self._methods]
        if not methods:
            return
        controls = [name for name in entries if name not in methods]
        self.rounds = rounds = Rounds(methods, controls, self.run.seed)
        going = True
        while going:
            alive = [entries[name] for name in rounds.alive]  # what all share is in the time of the first
            self._stage = (
                f"round {rounds.planned - rounds.further + 1} of {rounds.planned}: {len(rounds.methods)} methods"
            )
            self.say(self._stage)
            going = self._round(alive, self._until(alive, rounds))
            if not rounds.methods:  # all have refused a sample
                self.rounds = None
                return
            if not rounds.history:
                self.score = self.score.with_units(self.report, rounds.methods)
                if self._images(rounds.methods) < AIM and self.pieces.get(self._place) is not None:
                    self.enough = self._enough([entries[name] for name in rounds.alive])
            report = self.report
            values, faithful = self.score.values(report), self.score.faithful(report)
            going = rounds.note(values) and going and rounds.end_round(values, faithful, self._affordable)
        self.exhausted = self.pieces.get(self._place) is None

    def _affordable(self, names: Sequence[str]) -> float:
        """How many more images the budget has for methods and controls."""
        return self.budget.remaining / max(1e-9, self._seconds(names))

    def _seconds(self, names: Iterable[str]) -> float:
        """Seconds of a sample by all of these, on the machine as busy as it is."""
        return self.budget.load * sum(self.costs.seconds[name] for name in names)

    def _try_all(self) -> None:
        """Judge one image by every method, the cheap ones first; methods too slow for the budget are left out."""
        forward, first = self._forward(), self.pieces.get(0)
        if first is None:
            raise ArgumentError("Expected at least one sample, but the data is empty.")
        ordered = sorted(self.entrants, key=lambda method: (not method.control, passes(method)))
        self._warm_up(first, [method for method in ordered if not self._exceeds_estimate(method, forward)])
        spent, unsure = 0.0, True
        for method in ordered:
            if unsure and self._exceeds_estimate(method, forward):
                # No method leaves because the machine was busy for a moment.
                second = self._forward()
                forward, unsure = min(forward, second), second * _TIMING_RATIO < forward
            guess = self._maps * passes(method) * forward
            if self._exceeds_estimate(method, forward):
                self._leave(method, guess, self.costs.needed(guess), tried=False)
            elif not method.control and guess > min(_TRIAL_SHARE * self.budget.seconds - spent, self.budget.remaining):
                needed = 2 * self.budget.seconds
                self.left_out[method.label] = f"{NO_TIME}; give a budget of about {spoken(needed)}"
                self.too_slow[method.label] = needed
            else:
                self.say(f"trying {method.label}")
                self._judge(0, first, [method])
                # Without waits for other processes.
                spent += len(first.ids) * self.costs.seconds.get(method.label, 0.0)
        self._leave_out()

    def _forward(self) -> float:
        """Seconds of a forward pass of one image, the least of some, because the first ones load things."""
        subject = Subject(self.run.entrances[self.run.model], self.run.prepared, outputs=self.run.outputs)
        times = [math.inf] if subject.logits.numel() else []
        begun = self.budget.clock()
        while len(times) < _FORWARD_PASSES:
            if len(times) > 1:
                least, second = sorted(times)[:2]  # the least can be believed if the next is about the same
                share = _FORWARD_SHARE if second <= _TIMING_RATIO * least else _RETRY_SHARE
                if self.budget.clock() - begun >= share * self.budget.seconds:
                    break
            seconds = self.budget.timer()
            for _ in subject.run(1, lambda jobs: subject.variants(subject.main, jobs)):
                pass
            times.append(seconds())
        return min(times)

    def _exceeds_estimate(self, method: MethodRun, forward: float) -> bool:
        """Whether the cost guessed from the seconds of a forward pass is too high for a trial."""
        return not method.control and self._maps * passes(method) * forward > _GUESS_ERROR * self.costs.limit

    def _warm_up(self, first: Samples, methods: list[MethodRun]) -> None:
        """Judge by the first method that can, and drop the rows, so that no measured cost includes loading."""
        aside = copy(self.run)
        aside.skipped, aside.cost = {}, dict(aside.cost)
        refused: dict[str, str] = {}  # the reason is noted when the method is tried
        aside.keep(curves=False)
        for method in methods:
            if method.control:
                continue
            judge_batch(aside, first, self.run.prepared, [method], [self.score.metric], refused=refused)
            if method.label not in refused:
                return

    def _leave_out(self) -> None:
        """Leave out methods that are too slow by what was measured twice."""
        slow = self.costs.over(self._methods)
        rivals = [method for method in self._methods if method not in slow]
        for method in [*slow, *self.costs.blocking(rivals, _FIRST_ROUND_MAX_SHARE * self.budget.remaining)]:
            # It may have been slow once: the machine was busy, or something was loaded.
            piece, seconds = self.pieces.get(1), self.costs.seconds[method.label]
            until = (_TRIAL_SHARE + _RETRY_SHARE) * self.budget.seconds
            if piece is not None and self.budget.used + len(piece.ids) * seconds < until:
                self._judge(1, piece, [method])
        for method in self.costs.over(self._methods):
            seconds = self.costs.seconds[method.label]
            self._leave(method, seconds, self.costs.needed(seconds))
        enough = self._enough(self.raced)
        for method in self.costs.blocking(self._methods, _FIRST_ROUND_MAX_SHARE * self.budget.remaining):
            self._leave(method, self.costs.seconds[method.label], enough)

    def _leave(self, method: MethodRun, seconds: float, needed: float, tried: bool = True) -> None:
        self.too_slow[method.label] = needed
        self.left_out[method.label] = (
            f"a sample {'takes' if tried else 'would take about'} {spoken(seconds)} to explain and judge; {AIM} of "
            f"them, beside the others, need a budget of about {spoken(needed)}"
        )
        self.costs.seconds.pop(method.label, None)

    def _enough(self, methods: list[MethodRun]) -> float:
        """A budget, in seconds, by which all of these would have enough images in the first round."""
        seconds = _TRIAL_OVERHEAD * AIM * self._seconds(method.label for method in methods)
        return max(1.2 * self.budget.seconds, seconds / _FIRST_ROUND_MAX_SHARE + self.budget.reserve)

    def _until(self, alive: list[MethodRun], rounds: Rounds) -> float:
        """When a round ends, in seconds since the start."""
        time, cost = max(0.0, self.budget.remaining), self._seconds(method.label for method in alive)
        if rounds.further == 1:
            return self.budget.used + time
        if rounds.history:
            return self.budget.used + min(time, max(time / rounds.further, _TRIAL_OVERHEAD * (FRESH + 1) * cost))
        seconds = _TRIAL_OVERHEAD * math.ceil((AIM - 1) / PIECE) * PIECE * cost
        return self.budget.used + min(_FIRST_ROUND_MAX_SHARE * time, max(_FIRST_ROUND_SHARE * time, seconds))

    def _round(self, alive: list[MethodRun], until: float) -> bool:
        """Judge more images by all methods still in it, until a time; whether there are more of them, and time."""
        while (piece := self.pieces.get(self._place)) is not None:
            alive = [method for method in alive if method.label in self.costs.seconds]  # others have refused a sample
            if not any(not method.control for method in alive):
                return False
            if self.budget.used + len(piece.ids) * self._seconds(method.label for method in alive) > until:
                return True
            if not self._judge(self._place, piece, alive):
                return False
            self._place += 1
        return False

    def _judge(self, place: int, samples: Samples, methods: list[MethodRun]) -> bool:
        """Judge methods on a piece; False if time ran out, and some of them are not judged on it.

        Methods that refuse the piece are left out of the race with their reason.
        """
        sound = self._sound[place] if place in self._sound else self.run.prepare(samples)
        if place == 1:  # which may be judged again
            self._sound[place] = sound
        if sound is None:
            return True
        size, complete = len(sound[0].ids), True

        def watched() -> Iterator[MethodRun]:
            nonlocal complete
            for method in methods:
                if (place, method.label) in self._done:
                    continue
                if place and self.budget.remaining < size * self._seconds([method.label]):
                    complete = False
                    return
                if place:
                    self.say(f"{self._stage}, {method.label} on sample {samples.ids[-1] + 1}")
                seconds = self.budget.timer()
                yield method
                if method.label in self.left_out:
                    self.costs.seconds.pop(method.label, None)
                    if self.rounds is not None:
                        self.rounds.drop(method.label)
                    continue
                self.costs.note(method.label, seconds() / size)
                self._done.add((place, method.label))

        judge_batch(self.run, *sound, watched(), [self.score.metric], refused=self.left_out)
        if place not in self._answered:
            self._answered.add(place)
            self._note_accuracy(*sound)
        return complete

    def _note_accuracy(self, samples: Samples, prepared: Prepared) -> None:
        """Count the labels that the model predicts, where there are labels, and one class for each sample."""
        if samples.label is None or self.run.task != "classification":
            return
        subject = Subject(self.run.entrances[self.run.model], prepared, ids=samples.ids, outputs=self.run.outputs)
        labels = samples.label.to(subject.device)
        labelled = (labels >= 0) & subject.logits.isfinite().all(1)
        hits, count, _ = self.accuracy or (0, 0, 0)
        right = int((subject.predicted == labels)[labelled].sum())
        if bool(labelled.any()):
            self.accuracy = hits + right, count + int(labelled.sum()), subject.count

    def _images(self, methods: Sequence[str]) -> int:
        """Number of images that count for all of these."""
        values = self.score.values(self.report)
        return int(torch.stack([values[name].isfinite() for name in methods]).all(0).sum())
