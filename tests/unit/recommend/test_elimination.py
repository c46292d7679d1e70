"""Who leaves a race after a round: by proof, for want of time, and never by few images; and how often that is wrong."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from mhex.recommend.elimination import Rounds
from mhex.recommend.result import LEVEL

CONTROLS = ("control:random", "control:gaussian")


def drawn(n: int, **means: float) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    names = {**{name.replace("_", ":"): mean for name, mean in means.items()}}
    return {name: mean + torch.randn(n, generator=generator, dtype=torch.float64) for name, mean in names.items()}


def ended(values: dict[str, Tensor], budget: float) -> tuple[Rounds, bool]:
    """Rounds after the first, with a budget of so many samples of a method."""
    rounds = Rounds([name for name in values if ":" not in name], [name for name in values if ":" in name])
    rounds.note(values)
    return rounds, rounds.end_round(values, values, lambda names: budget / len(names))


def test_worse_methods_leave_and_equal_ones_stay() -> None:
    rounds, going = ended(drawn(20, a=4, b=4, c=4, d=0, e=0), 500)
    assert (rounds.worse, rounds.early, rounds.methods) == (["d", "e"], [], ["a", "b", "c"])
    assert going
    assert rounds.level == pytest.approx(LEVEL * (1 - 0.3 / 2))  # of three rounds, two come before the last


def test_without_time_those_behind_leave_undecided() -> None:
    """Two standard errors, which is far less than what is shown for all methods together."""
    noise = drawn(12, **dict.fromkeys("bcdefgh", 0.0))
    values = {
        name: (one - one.mean()) / one.std() - (2.6 + 0.01 * place) / math.sqrt(12)
        for place, (name, one) in enumerate(noise.items())
    }
    values = {"a": torch.zeros(12, dtype=torch.float64), **values}
    calm, _ = ended(values, 8 * 12)
    assert calm.early == []
    short, going = ended(values, 8 * 5)
    assert set(short.early) <= set("efgh")
    assert short.early
    assert short.methods[0] == "a"
    assert going


def test_each_round_has_four_new_images_or_there_is_none() -> None:
    values = drawn(12, **dict.fromkeys("abcdefgh", 0.0))
    rounds, going = ended(values, 3 * 4)
    assert len(rounds.methods) == 3
    assert going
    rounds, going = ended(values, 2 * 4)
    assert len(rounds.methods) == 2
    assert going
    rounds, going = ended(values, 7)
    assert len(rounds.methods) == 2
    assert not going
    assert not rounds.note(values)  # the same images are no round
    assert rounds.history == [(8, 12)]


def test_who_left_is_undecided_after_a_method_that_is_taken_out() -> None:
    rounds, _ = ended(drawn(20, a=4, b=4, c=4, d=0, e=0), 500)
    rounds.drop("a")
    assert (rounds.methods, rounds.worse, rounds.early) == (["b", "c"], [], ["d", "e"])
    rounds.drop("b")
    rounds.drop("c")
    assert (rounds.methods, rounds.worse, rounds.early) == (["d", "e"], [], [])


def test_with_few_images_nobody_leaves() -> None:
    rounds, going = ended(drawn(5, a=9, b=0, c=0, d=0), 40)
    assert rounds.methods == ["a", "b", "c", "d"]
    assert going
    assert rounds.level == LEVEL


def test_a_single_method_ends_the_race() -> None:
    rounds, going = ended(drawn(20, a=9, b=0, c=0), 500)
    assert rounds.methods == ["a"]
    assert not going


def test_a_centred_map_leaves_when_all_are_above_it() -> None:
    rounds, _ = ended(drawn(20, a=9, b=9, c=9, control_random=0, control_gaussian=0), 500)
    assert rounds.controls == ["control:random"]
    rounds, _ = ended(drawn(20, a=9, b=9, c=9, control_random=0, control_gaussian=9), 500)
    assert rounds.controls == ["control:random", "control:gaussian"]


@pytest.mark.parametrize("rounds", [False, True])
def test_errors_of_equal_methods_are_rare(monkeypatch: pytest.MonkeyPatch, rounds: bool) -> None:
    """Of 60 races with errors of 5 %, more than eight have one with a probability of 0.2 %; 25 % would give 15."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    monkeypatch.setattr("mhex.stats.simultaneous.FAMILY_FLIPS", 400)
    from race_statistics import Case, rates

    found = rates(Case("", 12, 20, rounds=rounds), 60)
    assert found["false worse"] <= 8 / 60
    assert found["false above"] <= 8 / 60
    assert found["covered"] >= 0.93
    assert math.isnan(found["margin covered"]) or found["margin covered"] >= 0.93


def test_a_method_ahead_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    monkeypatch.setattr("mhex.stats.simultaneous.FAMILY_FLIPS", 400)
    from race_statistics import Case, rates

    found = rates(Case("", 12, 60, correlation=0.5, ahead=0.5, lead=1.0), 10)
    assert found["first named"] >= 0.9
    assert found["others worse"] > 0.6
    assert found["false worse"] == 0
