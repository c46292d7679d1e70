"""How often the answers of a race are wrong where the truth is known, by drawn scores in place of a model.

python benchmarks/race_statistics.py                 all cases, some minutes of one core
python benchmarks/race_statistics.py --races 50      less exact

Scores of images are drawn, and go through the decisions and tests of `mhex.recommend`. Where all methods are equal, at
most 5 % of the races may call any method worse, and at most 5 % any method above random maps. Intervals must cover the
true difference in 93 % or more. In the last cases one method is half a standard deviation ahead.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mhex.judge.controls import RANDOM
from mhex.recommend.elimination import FRESH, Rounds
from mhex.recommend.result import RaceResult, beside_random
from mhex.stats import simultaneous

FIRST = 10  # images of the first round
Draw = Callable[[tuple[int, ...], torch.Generator], Tensor]


def normal(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Numbers of the normal distribution."""
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def skewed(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Lognormal numbers of mean 0 and standard deviation 1."""
    scale = math.sqrt((math.e - 1) * math.e)
    return (normal(shape, generator).exp() - math.exp(0.5)) / scale


def heavy(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Numbers of Student's t with 3 degrees, divided by their standard deviation."""
    squares = normal((3, *shape), generator).square().mean(0)
    return normal(shape, generator) / squares.sqrt() / math.sqrt(3)


def opposite(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Exponential numbers of mean 0, with the long side up for every second method and down for the others."""
    numbers = -torch.rand(shape, generator=generator, dtype=torch.float64).log() - 1
    numbers[:, ::2] *= -1
    return numbers


@dataclass(frozen=True)
class Case:
    """What is true, and how many images a race may have.

    Attributes:
        name: In the table.
        methods: How many, beside random maps.
        images: Of a single round; of a sequential race, so many that all methods could have this many.
        draw: Scores of images and methods, of mean 0 and standard deviation 1.
        correlation: Between methods on the same images.
        groups: Into which methods fall, if only methods of the same group are correlated.
        ahead: Standard deviations that the first method is ahead of all others.
        lead: Standard deviations that all methods are ahead of random maps.
        rounds: Whether methods leave after rounds.
    """

    name: str
    methods: int
    images: int
    draw: Draw = normal
    correlation: float = 0.0
    groups: int = 1
    ahead: float = 0.0
    lead: float = 0.0
    rounds: bool = False

    def scores(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Scores of each image, by method and control; more images than any method can have."""
        images = self.images * (4 if self.rounds else 1)
        shared = normal((images, self.groups), generator)[:, torch.arange(self.methods + 1) % self.groups]
        numbers = self.draw((images, self.methods + 1), generator)
        numbers = math.sqrt(self.correlation) * shared + math.sqrt(1 - self.correlation) * numbers
        numbers[:, :-1] += self.lead
        numbers[:, 0] += self.ahead
        return dict(zip([*(f"m{place}" for place in range(self.methods)), RANDOM], numbers.unbind(1), strict=True))


@dataclass(frozen=True)
class Outcome:
    """One race.

    Attributes:
        result: Its result.
        beside: Answers beside random maps.
        covered: Of the intervals of what methods are behind, the share that holds the true difference; NaN without any.
        margin: Whether the interval of the next method holds its true difference.
    """

    result: RaceResult
    beside: dict[str, str]
    covered: float
    margin: float


def outcome(case: Case, seed: int) -> Outcome:
    """Run a race on drawn scores, by the decisions of the software."""
    scores = case.scores(torch.Generator().manual_seed(seed))
    methods = [name for name in scores if name != RANDOM]
    rounds, seen = Rounds(methods, [RANDOM], seed), dict.fromkeys(scores, 0)
    budget = float(case.images * len(scores))  # an image of a method or control costs 1

    def values() -> dict[str, Tensor]:
        places = torch.arange(len(scores[RANDOM]))
        return {name: numbers.where(places < seen[name], torch.nan) for name, numbers in scores.items()}

    def affordable(names: Sequence[str]) -> float:
        return (budget - sum(seen.values())) / len(names)

    going = True
    while going:
        most, share = math.floor(affordable(rounds.alive)), affordable(rounds.alive) / rounds.further
        first = min(FIRST, most) if case.rounds else most
        fresh = min(most, max(FRESH, math.floor(share))) if rounds.history else first
        for name in rounds.alive:
            seen[name] = min(seen[name] + fresh, len(scores[name]))
        going = rounds.note(values()) and case.rounds and rounds.end_round(values(), values(), affordable)
    found = values()
    result = rounds.result({name: found[name] for name in methods})
    beside = beside_random(found, RANDOM, methods, result.best, rounds.level, seed)
    truth = {name: case.ahead * ((result.best == "m0") - (name == "m0")) for name in methods}
    hits = [
        float(low <= truth[name] <= high)
        for name, (_, low, high) in result.behind.items()
        if name != result.best and not math.isnan(low)
    ]
    _, low, high = result.behind[result.order[1]]
    margin = float(low <= truth[result.order[1]] <= high) if not math.isnan(low) else math.nan
    return Outcome(result, beside, sum(hits) / len(hits) if hits else math.nan, margin)


def rates(case: Case, races: int) -> dict[str, float]:
    """Shares over races: any false "worse", any false "above", intervals that cover, the first named, others worse."""
    outcomes = [outcome(case, seed) for seed in range(races)]
    equal = {"m0"} if case.ahead else {f"m{place}" for place in range(case.methods)}
    others = [[one.result.worse[name] == "yes" for name in one.result.order if name != "m0"] for one in outcomes]
    early = [answer == "undecided" for one in outcomes for answer in one.result.worse.values()]
    shares = {
        "false worse": [any(one.result.worse[name] == "yes" for name in equal) for one in outcomes],
        "false above": [not case.lead and "above" in one.beside.values() for one in outcomes],
        "covered": [one.covered for one in outcomes],
        "margin covered": [one.margin for one in outcomes],
        "first named": [one.result.best == "m0" for one in outcomes],
        "others worse": [sum(flags) / len(flags) for flags in others],
        "undecided": early,
    }
    return {name: float(torch.tensor(flags, dtype=torch.float64).nanmean()) for name, flags in shares.items()}


CASES = (
    Case("22 equal, 40 images", 22, 40),
    Case("22 equal, 10 images", 22, 10),
    Case("22 equal, 8 images", 22, 8),
    Case("3 equal, 10 images", 3, 10),
    Case("22 equal, 40 images, skewed", 22, 40, skewed),
    Case("22 equal, 10 images, skewed", 22, 10, skewed),
    Case("22 equal, 40 images, heavy tails", 22, 40, heavy),
    Case("22 equal, 40 images, opposite skew", 22, 40, opposite),
    Case("22 equal, 100 images, opposite skew", 22, 100, opposite),
    Case("22 equal, 10 images, opposite skew", 22, 10, opposite),
    Case("22 equal, 40 images, correlation 0.5 in 4 groups", 22, 40, correlation=0.5, groups=4),
    Case("22 equal, race of 40", 22, 40, rounds=True),
    Case("22 equal, race of 20", 22, 20, rounds=True),
    Case("22 equal, race of 40, skewed", 22, 40, skewed, rounds=True),
    Case("22 equal, race of 40, opposite skew", 22, 40, opposite, rounds=True),
    Case("22 equal, race of 40, correlation 0.5 in 4 groups", 22, 40, correlation=0.5, groups=4, rounds=True),
    Case("one ahead by 0.5, 60 images, correlation 0.5", 22, 60, correlation=0.5, ahead=0.5, lead=1.0),
    Case("one ahead by 0.5, race of 60, correlation 0.5", 22, 60, correlation=0.5, ahead=0.5, lead=1.0, rounds=True),
    Case("one ahead by 1, race of 30, correlation 0.5", 22, 30, correlation=0.5, ahead=1.0, lead=1.0, rounds=True),
)


def main() -> None:
    """Print a table of all cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--races", type=int, default=200)
    parser.add_argument("--flips", type=int, default=1000, help="of signs; the software has 4000, which take longer")
    arguments = parser.parse_args()
    races, simultaneous.FAMILY_FLIPS = arguments.races, arguments.flips
    torch.set_num_threads(1)
    for place, case in enumerate(CASES):
        row = rates(case, races)
        if not place:
            print(f"| case ({races} races) | {' | '.join(row)} |\n|---|{'---:|' * len(row)}")
        print(f"| {case.name} | {' | '.join(f'{100 * share:.1f} %' for share in row.values())} |", flush=True)


if __name__ == "__main__":
    main()
