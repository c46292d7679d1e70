"""A race of methods under a time budget: successive halving on the same images for all who are still in it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from mhex.bench.budget import Watch, spoken
from mhex.bench.cases import Run
from mhex.bench.controls import RANDOM
from mhex.bench.judging import judge_batch
from mhex.bench.plan import Judged
from mhex.bench.report import Report
from mhex.bench.samples import Samples
from mhex.bench.sampling import Pieces
from mhex.bench.scoring import Score
from mhex.errors import CaptureError, MissingExtraError, UnsupportedModelError
from mhex.perturb import Subject
from mhex.registry import get_method

_CANNOT = (UnsupportedModelError, CaptureError, MissingExtraError)
_TRYING = 0.3  # of the budget at most is spent on the first image, by which costs are learnt
_ONE = 0.1  # of the budget is the most that so many images by one method may cost, where there are many methods
_FEW = 4
_DOUBT = 2  # a guess may be so far off
_FIRST = 0.4  # of what is left after that goes to the first round, which also tells methods from random maps
_SPARE = 0.04  # for tests and tables at the end
_MAPS = 3  # of each image: of its class, of another, and with noise
_UNKNOWN = 400.0  # forward passes that a method is taken to need for a map, if it does not say


@dataclass
class Race:
    """Who is in it, who is out, and what was measured.

    Attributes:
        run: What does not change from image to image.
        score: By what methods are raced.
        pieces: The samples.
        watch: The budget.
        entrants: Methods and control maps, all.
        left_out: Those that were never raced, and why.
        seconds: What an image by each costs, everything counted.
        rounds: For each round: how many methods began it, and how many images they had at its end.
    """

    run: Run
    score: Score
    pieces: Pieces
    watch: Watch
    entrants: list[Judged]
    say: Callable[[str], None] = lambda text: None
    left_out: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    rounds: list[tuple[int, int]] = field(default_factory=list)
    last: list[str] = field(default_factory=list)
    _place: int = 1  # of the next piece

    @property
    def report(self) -> Report:
        """All rows so far."""
        return Report(self.run.parts.table())

    def forward(self) -> float:
        """Seconds of a forward pass of one image, the second time, because the first loads things."""
        first = self.pieces.get(0)
        assert first is not None  # empty data is refused before
        run = self.run
        subject = Subject(run.model, first.inputs, preprocess=run.preprocess, tokenizer=run.tokenizer)
        started = self.watch.clock() if subject.logits.numel() else 0.0
        for _ in subject.run(1, lambda jobs: subject.variants(subject.main, jobs)):
            pass
        return self.watch.clock() - started

    def go(self, forward: float) -> None:
        """Race until the budget is used, the data is at its end, or one method is left.

        Args:
            forward: Seconds of a forward pass of one image, for a first guess of costs.
        """
        self._try_all(forward)
        alive = [one for one in self.entrants if one.label in self.seconds]
        methods = [one for one in alive if not one.control]
        if not methods:
            return
        rounds = max(1, math.ceil(math.log2(max(2, len(methods)))))
        for number in range(rounds):
            left = self.watch.left - _SPARE * self.watch.budget
            share = 1.0 if number == rounds - 1 else _FIRST if number == 0 else 1 / (rounds - number)
            self.say(f"round {number + 1} of {rounds}: {len(methods)} methods")
            whole = self._round(alive, self.watch.used + share * max(0.0, left))
            if number == 0:
                self.score = self.score.with_units(self.report, [one.label for one in methods])
            self.rounds.append((len(methods), self._images(methods)))
            self.last = [one.label for one in methods]
            if not whole or len(methods) <= 2:
                continue
            means = self._means(alive)
            order = sorted(methods, key=lambda one: -means[one.label])
            methods = order[: max(2, math.ceil(len(methods) / 2))]
            # Random maps stay, for the tests; the other controls go when they are behind all.
            floor = means[methods[-1].label]
            controls = [one for one in alive if one.control and (one.label == RANDOM or means[one.label] >= floor)]
            alive = [*methods, *controls]

    def _try_all(self, forward: float) -> None:
        """One image by everybody, the cheap ones first; who is too slow for the budget is left out."""
        first = self.pieces.get(0)
        assert first is not None  # empty data is refused before
        share = max(_ONE, 0.5 / sum(not one.control for one in self.entrants))
        limit = share * self.watch.budget
        for one in sorted(self.entrants, key=lambda one: (not one.control, _passes(one))):
            guess = _MAPS * _passes(one) * forward
            if not one.control and _FEW * guess > _DOUBT * limit:
                self.left_out[one.label] = (
                    f"a map takes about {_passes(one):.0f} forward passes, {spoken(guess / _MAPS)} here, which is too "
                    f"slow for a budget of {spoken(self.watch.budget)}"
                )
                continue
            if not one.control and self.watch.used + guess > _TRYING * self.watch.budget:
                self.left_out[one.label] = "there was no time left to try it; give a larger budget"
                continue
            self.say(f"trying {one.label}")
            if (seconds := self._judge(first, one)) is None:
                continue
            if not one.control and _FEW * seconds > limit:
                self.left_out[one.label] = (
                    f"an image takes {spoken(seconds)} to explain and judge, which is too slow for a budget of "
                    f"{spoken(self.watch.budget)}"
                )
                continue
            self.seconds[one.label] = seconds

    def _round(self, alive: list[Judged], until: float) -> bool:
        """More images for all who are in, until a time; whether any were added that all have."""
        added = self._place == 1  # the first image counts as the beginning of the first round
        while (piece := self.pieces.get(self._place)) is not None:
            size = len(piece.ids)
            if self.watch.used + size * sum(self.seconds[one.label] for one in alive) > until:
                break
            for one in alive:
                # Slower than was foreseen: the piece is left unfinished, and counts for nobody.
                if self.watch.left < 0:
                    return added
                if (seconds := self._judge(piece, one)) is not None:
                    self.seconds[one.label] = (self.seconds[one.label] + seconds) / 2
            self._place += 1
            added = True
        return added

    def _judge(self, samples: Samples, one: Judged) -> float | None:
        """Seconds of each image; None for a method that cannot serve the model, which is left out."""
        started = self.watch.clock()
        try:
            judge_batch(self.run, samples, [one], [self.score.judge], progress=False)
        except _CANNOT as error:
            if len(samples.ids) > 1 or one.label in self.seconds:
                raise
            self.left_out[one.label] = error.reason if isinstance(error, UnsupportedModelError) else str(error)
            return None
        return (self.watch.clock() - started) / len(samples.ids)

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


def _passes(one: Judged) -> float:
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
