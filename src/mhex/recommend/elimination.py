"""Who leaves a race after a round, and when it ends: decided by values of images alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from mhex.judge.controls import RANDOM
from mhex.recommend.result import LEVEL, RaceResult, race_result, shown_above
from mhex.stats.simultaneous import MIN_IMAGES, best_set

FRESH = 4  # new images at least that a further round must give to all who are in it
_FAR = 2.0  # standard errors behind the leader, from which a method may leave for want of time
_INTERIM = 0.3  # share of the error that the rounds before the last may spend together

# From names of methods and controls to the number of images that the budget has for all of them.
Affordable = Callable[[Sequence[str]], float]


class Rounds:
    """The methods of a race on their way through the rounds.

    A method leaves after a round for one of two reasons. It is *worse* if it is outside the confidence set of the best.
    Rounds before the last share 30 % of the error for that, and the last test has what is not spent. It leaves *early*
    if the time for the others is short, see `end_round`; that shows nothing, and its answer is undecided.
    """

    def __init__(self, methods: Sequence[str], controls: Sequence[str] = (), seed: int = 0) -> None:
        self.methods, self.controls, self.seed = list(methods), list(controls), seed
        self.planned = max(1, math.ceil(math.log2(max(2, len(methods)))))
        self.worse: list[str] = []
        self.early: list[str] = []
        self.history: list[tuple[int, int]] = []  # of each round, methods that were in it and their images at its end
        self.spent = 0.0  # of the error
        self._ended = 0  # rounds that are over

    @property
    def level(self) -> float:
        """Error level of the final tests."""
        return LEVEL - self.spent

    @property
    def alive(self) -> list[str]:
        """Control maps and methods that are still judged."""
        return [*self.controls, *self.methods]

    @property
    def further(self) -> int:
        """Rounds that are planned and not over, with the one that goes on."""
        return max(1, self.planned - self._ended)

    def drop(self, name: str) -> None:
        """Take out a method or control that cannot be judged on more images, as if it had not been raced.

        Others may have been shown to be worse than this one alone, so they are undecided. If no method is left in the
        race, the last round is that of those who left.
        """
        self.methods = [method for method in self.methods if method != name]
        self.controls = [control for control in self.controls if control != name]
        self.worse, self.early = [], [*self.worse, *self.early]
        if not self.methods:
            self.methods, self.early = self.early, []

    def note(self, values: Mapping[str, Tensor]) -> bool:
        """Note the images of a round that is over; whether there were new ones."""
        present = torch.stack([values[name].isfinite() for name in self.methods]).all(0)
        entry, before = (len(self.methods), int(present.sum())), self.history[-1][1] if self.history else 0
        if entry[1] <= before and self.history:
            return False
        if self.history and self.history[-1][0] == entry[0]:
            self.history[-1] = entry  # nobody had left
        else:
            self.history.append(entry)
        self._ended += 1
        return True

    def end_round(self, values: Mapping[str, Tensor], faithful: Mapping[str, Tensor], affordable: Affordable) -> bool:
        """Decide who leaves after a round, and whether another one follows.

        Methods outside the confidence set leave. If the budget has not half as many new images for the rest as there
        were, methods in the worse half leave early that are two standard errors of the difference behind the leader.
        If it has fewer than four, the last by rank leave early until it has, and two are left. A centred or edge map
        leaves when all methods in the race are shown to be above it; random maps stay. With fewer than six images
        nobody leaves.

        Args:
            values: Scores of each image, (n,), by name.
            faithful: What is compared with control maps, in the same form.
            affordable: How many more images the budget has for methods and controls.
        """
        if self._ended >= self.planned:
            return False
        if self.history[-1][1] < MIN_IMAGES:
            return affordable(self.alive) >= 1
        level = _INTERIM * LEVEL / (self.planned - 1)
        self.spent += level
        members = best_set(torch.stack([values[name] for name in self.methods], 1), level, self.seed).tolist()
        self.worse += [name for name, inside in zip(self.methods, members, strict=True) if not inside]
        self.methods = [name for name, inside in zip(self.methods, members, strict=True) if inside]
        for control in [name for name in self.controls if name != RANDOM]:
            if all(shown_above(faithful, control, self.methods, level, self.seed).values()):
                self.controls.remove(control)
        if len(self.methods) < 2:
            return False
        common = torch.stack([values[name].isfinite() for name in self.methods]).all(0)
        ordered = sorted(self.methods, key=lambda name: -float(values[name][common].mean()))
        if affordable(self.alive) < self.history[-1][1] / 2:
            leader, half = ordered[0], max(2, math.ceil(len(ordered) / 2))
            ordered = [
                name
                for place, name in enumerate(ordered)
                if place < half or not _far_behind((values[leader] - values[name])[common])
            ]
            while len(ordered) > 2 and affordable([*self.controls, *ordered]) < FRESH:
                ordered.pop()
            self.early += [name for name in self.methods if name not in ordered]
            self.methods = [name for name in self.methods if name in ordered]
        return affordable(self.alive) >= FRESH

    def result(self, values: Mapping[str, Tensor]) -> RaceResult:
        """The result by the scores of all methods that were raced, controls not among them."""
        return race_result(values, self.methods, self.worse, self.level, self.seed)


def _far_behind(difference: Tensor) -> bool:
    """Whether the mean of a difference (n,) to the leader is two standard errors from 0; not shown by many at once."""
    if len(difference) < MIN_IMAGES:
        return False
    return float(difference.mean()) > _FAR * float(difference.std()) / math.sqrt(len(difference))
