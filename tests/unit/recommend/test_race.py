"""The race: its budget, samples of the first round, slow methods, and machines that are slow at first or at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from mhex.errors import ArgumentError, UnsupportedModelError
from mhex.inputs.samples import Pieces
from mhex.judge import cases
from mhex.judge.plan import MethodRun
from mhex.recommend.race import AIM, Budget, Costs, Race, passes
from support.method_races import GRADIENT, GRADIENT_NAME, ZERO, Clock, Linear, images, run

FOUR: Any = ["input-x-gradient", GRADIENT, ("smoothgrad", {"n": 3}), ("rise", {"n": 4})]


@pytest.mark.parametrize("budget", [30.0, 60.0])
def test_the_budget_is_kept(budget: float) -> None:
    clock = Clock()
    found = run(Linear(clock, 0.02), budget=budget, methods=FOUR, clock=clock, data=images(500))
    assert found.used <= budget
    # All is used, unless a single method is left.
    assert found.used > 0.6 * budget or sum(line.worse == "no" for line in found.table) == 1
    assert found.rounds[0][0] == 4
    assert found.rounds[-1][1] >= found.rounds[0][1] > 1


def test_methods_that_are_shown_to_be_worse_leave() -> None:
    """Pixel times gradient is exact, and gradients alone are the worst of the four."""
    clock = Clock()
    advice = run(Linear(clock, 0.02), budget=100, methods=FOUR, clock=clock, data=images(500))
    lines = {line.method: line for line in advice.table}
    assert advice.method == "input-x-gradient"
    assert advice.rounds[0][0] == 4
    assert lines[GRADIENT_NAME].worse == "yes"
    assert lines[GRADIENT_NAME].standing == "worse"
    assert AIM <= lines[GRADIENT_NAME].images <= lines["input-x-gradient"].images


def test_some_of_the_budget_is_kept_for_the_page(tmp_path: Any) -> None:
    clocks = [Clock(), Clock()]
    plain, drawn = (
        run(Linear(clock, 0.02), budget=30, methods=FOUR, clock=clock, data=images(500), out=out)
        for clock, out in zip(clocks, (None, tmp_path / "out"), strict=True)
    )
    assert drawn.used + 3 <= 30
    assert drawn.used < plain.used - 1


def test_all_have_ten_samples_before_the_first_leave() -> None:
    """A share of 0.4 of the time would give fewer; and one of 0.75 is the most."""
    clock = Clock()
    found = run(Linear(clock, 0.02), budget=60, methods=FOUR, clock=clock, data=images(16))
    assert found.rounds[0] == (4, 14)
    assert found.enough is None
    assert all(line.above_random in ("above", "negligible", "undecided") for line in found.table if not line.control)
    clock = Clock()
    found = run(Linear(clock, 0.02), budget=20, methods=FOUR, clock=clock, data=images(500))
    assert found.rounds[0][1] < AIM
    assert found.enough is not None
    assert 20 < found.enough < 60
    clock = Clock()  # and it is enough, without being far more than that
    longer = run(Linear(clock, 0.02), budget=found.enough, methods=FOUR, clock=clock, data=images(500))
    assert longer.rounds[0][1] == AIM
    assert "would give ten." in " ".join(found.sentences())
    # Where the data has no more, time would not help.
    assert run(methods=FOUR, data=images(5)).enough is None


def test_with_too_few_samples_nothing_is_flagged() -> None:
    found = run(methods=[GRADIENT, "input-x-gradient"], data=images(5))
    assert found.not_better_than_random == ()
    assert [line.above_random for line in found.table if not line.control] == ["undecided", "undecided"]
    assert "too few to tell methods apart" in found.sentences()[0]
    assert {line.standing for line in found.table} == {"too few samples", "control"}


def test_a_machine_that_slows_down_is_noticed() -> None:
    clock = Clock()
    model = Linear(clock, 0.05)
    told: list[str] = []

    def say(text: str) -> None:
        told.append(text)
        if text.startswith("round 1"):
            model.seconds = 1.0

    methods = [GRADIENT, *(("rise", {"n": n}) for n in range(1, 7))]
    found = run(model, budget=100, methods=methods, clock=clock, data=images(500), say=say)
    # Twenty times slower at once: what is under way, an image or two by one method, is the last.
    assert found.used <= 120
    assert told[0] == "trying control:random"


class Cold(Linear):
    """A model that takes ten seconds more, once, when it is first asked for a gradient."""

    cold = True

    def forward(self, x: Tensor) -> Tensor:
        if self.cold and torch.is_grad_enabled() and self.clock is not None:
            self.clock.now += 10
            self.cold = False
        return super().forward(x)


@pytest.mark.parametrize("count", [1, 4])
def test_a_cold_start_is_in_nobody_s_cost(count: int) -> None:
    """It would be four times what a sample may take; and with one image nobody can be tried again."""
    clock = Clock()
    methods = [*FOUR, *(("rise", {"n": n}) for n in range(1, 4))]
    found = run(Cold(clock, 0.01), budget=120, methods=methods, clock=clock, data=images(count))
    assert found.left_out == {}
    assert len([line for line in found.table if not line.control]) == 7


class Once(Linear):
    """A model that stops for ten seconds at one of its calls."""

    calls, at = 0, -1

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == self.at and self.clock is not None:
            self.clock.now += 10
        return super().forward(x)


def test_one_who_was_slow_once_is_tried_again() -> None:
    counted = Once(Clock(), 0.01)
    at: list[int] = []
    told = lambda text: at.append(counted.calls) if text == "trying rise (n=4)" else None  # noqa: E731
    run(counted, methods=FOUR, clock=counted.clock, data=images(2), say=told)
    model = Once(Clock(), 0.01)
    model.at = at[0] + 2
    found = run(model, methods=FOUR, clock=model.clock, data=images(14))
    assert model.calls > model.at
    assert found.left_out == {}
    images_of = {line.method: line.images for line in found.table}
    assert images_of["rise (n=4)"] >= AIM


class Waiting(Linear):
    """A model that waits for other processes at some of its calls: the clock runs, and its own work does not."""

    def __init__(self, clock: Clock, seconds: float, waits: dict[int, float]) -> None:
        super().__init__(clock, seconds)
        self.waits, self.calls, self.worked = waits, 0, 0.0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.worked += self.seconds * len(x)
        if self.clock is not None:
            self.clock.now += self.waits.get(self.calls, 0.0)
        return super().forward(x)


@pytest.mark.parametrize(("at", "seconds"), [(3, 11.7), (4, 11.7), (5, 11.7)])
def test_one_slow_pass_leaves_nobody_out(at: int, seconds: float) -> None:
    """At 11.7 s for a pass, every method would be judged too slow for two minutes."""
    clock = Clock()
    model = Waiting(clock, 0.01, {at: seconds})
    found = run(model, methods=[*FOUR, ("rise", {"n": 40})], clock=clock, data=images(2))
    assert found.left_out == {}


def test_passes_that_are_slow_for_a_while_are_timed_again() -> None:
    clock = Clock()
    model = Waiting(clock, 0.01, dict.fromkeys(range(1, 5), 14.0))
    found = run(model, methods=FOUR, clock=clock, data=images(2))
    assert found.left_out == {}


def waited(waits: dict[int, float], budget: float = 120) -> tuple[Waiting, Race]:
    clock = Clock()
    model = Waiting(clock, 0.01, waits)
    watch = Budget(budget, clock, lambda: model.worked)
    race = Race(model, Pieces(images(3)), watch, methods=FOUR, score=ZERO)
    race.go()
    return model, race


def test_a_wait_for_other_processes_is_in_nobody_s_cost() -> None:
    calm, race = waited({})
    assert race.left_out == {}
    for at in (1, 12, 50):
        model, busy = waited({at: 90.0})
        assert busy.left_out == {}, at
        assert all(busy.costs.seconds[name] <= 5 * seconds + 0.1 for name, seconds in race.costs.seconds.items()), at
        assert model.calls <= calm.calls + 20


def test_time_at_work_bounds_what_is_measured() -> None:
    clock, work = Clock(), Clock()
    watch = Budget(60, clock, work)
    seconds = watch.timer()
    clock.now, work.now = clock.now + 50, work.now + 1
    assert seconds() == pytest.approx(1, rel=0.01)
    assert watch.load == pytest.approx(50, rel=0.01)
    seconds = watch.timer()
    clock.now, work.now = clock.now + 3, work.now + 6  # two threads
    assert seconds() == pytest.approx(3, rel=0.01)
    seconds = watch.timer()
    clock.now += 0.05  # shorter than some systems count the time at work
    assert seconds() == pytest.approx(0.05, rel=0.01)
    assert Budget(60, clock).timer()() < 0.01


def test_a_refusal_is_short() -> None:
    clock = Clock()
    methods: Any = [("rise", {"n": n}) for n in range(4000, 4030)]
    with pytest.raises(ArgumentError) as told:
        run(Linear(clock, 0.05), methods=methods, clock=clock)
    assert "2.0 min is too short for all of 30; the quickest, rise (n=4000), needs about" in str(told.value)
    assert len(str(told.value)) < 300


def test_slow_methods_are_told_with_what_they_need() -> None:
    clock = Clock()
    methods = ["input-x-gradient", GRADIENT, ("rise", {"n": 5000})]
    found = run(Linear(clock, 0.01), methods=methods, budget=60, clock=clock, data=images(9))
    assert list(found.left_out) == list(found.too_slow) == ["rise (n=5000)"]
    # Three maps of 5000 passes, ten times, in four fifths of the budget by three.
    assert found.too_slow["rise (n=5000)"] == pytest.approx(3 * 5000 * 0.01 * 10 / (0.8 / 3), rel=0.05)
    assert found.left_out["rise (n=5000)"].startswith("a sample would take about 2.5 min to explain and judge")
    assert "Too slow for this budget: rise (n=5000)" in str(found)
    # And what was guessed too low is seen on the first image.
    clock = Clock()
    methods = ["input-x-gradient", GRADIENT, ("rise", {"n": 80})]
    found = run(Linear(clock, 0.01), methods=methods, budget=60, clock=clock, data=images(9))
    assert found.left_out["rise (n=80)"].startswith("a sample takes 2.")
    assert found.too_slow["rise (n=80)"] > 60
    assert found.used < 60


def test_slow_ones_leave_so_that_the_others_have_enough() -> None:
    costs = Costs(100, 5, {"a": 0.1, "b": 0.1, "c": 0.2, "d": 0.9, "e": 1.2})
    methods = [MethodRun(name) for name in "abcde"]
    assert costs.blocking(methods, 25) == []
    assert [one.name for one in costs.blocking(methods, 15)] == ["e"]
    assert [one.name for one in costs.blocking(methods, 5)] == ["e", "d"]
    assert [one.name for one in costs.over(methods)] == []
    costs.seconds["e"] = 2.1
    assert [one.name for one in costs.over(methods)] == ["e"]
    # Those who cost about the same share what there is.
    assert [one.name for one in costs.blocking(methods, 0.1)] == ["e", "d"]
    assert costs.limit == pytest.approx(2.0)
    slow = Costs(1, 5, {"a": 5, "b": 5, "c": 6, "d": 7, "e": 7})
    assert slow.over(methods) == slow.blocking(methods, 0.1) == []
    # A race needs a rival: the slower of two stays, however much slower it is.
    assert Costs(100, 2, {"a": 0.1, "b": 9.0}).blocking(methods[:2], 0.1) == []


def test_passes_are_guessed_with_those_that_go_back() -> None:
    assert passes(MethodRun("smoothgrad", {"n": 5})) == 15
    assert passes(MethodRun("integrated-gradients", {"steps": 4})) == 12
    assert passes(MethodRun("occlusion")) == 400  # it does not say


def test_costs_forget_the_first() -> None:
    costs = Costs(100, 5)
    for seconds in (9.0, 1.0, 2.0):
        costs.note("a", seconds)
    assert costs.seconds == {"a": 1.5}
    costs.note("b", 1.0)
    costs.note("b", 9.0)  # a wait at the second try is forgotten too
    assert costs.seconds["b"] == 1.0
    assert passes(MethodRun("rise", {"n": 7})) == 7
    assert passes(MethodRun("control:random")) == 0
    assert costs.needed(costs.limit) == pytest.approx(100)


def refuse(monkeypatch: pytest.MonkeyPatch, place: int, *names: str) -> None:
    """Let methods refuse the sample at a place of the race."""
    usual = cases._new_maps

    def maps(batch: cases.SampleBatch, model: Any, method: MethodRun, inputs: Any, classes: Tensor) -> Tensor:
        if method.name in names and place in batch.samples.ids:
            raise UnsupportedModelError(f"Method {method.name!r} is not defined here: too long", "too long")
        return usual(batch, model, method, inputs, classes)

    monkeypatch.setattr(cases, "_new_maps", maps)


@pytest.mark.parametrize("place", [0, 1, 5])
def test_a_method_that_refuses_a_sample_is_left_out_and_the_race_goes_on(
    monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    refuse(monkeypatch, place, "input-x-gradient")
    clock = Clock()
    methods = ["input-x-gradient", GRADIENT, *(("rise", {"n": n}) for n in range(2, 5))]
    advice = run(Linear(clock, 0.02), budget=100, methods=methods, clock=clock, data=images(500))
    assert advice.left_out == {"input-x-gradient": "too long"}
    assert "Left out: input-x-gradient (too long)." in advice.sentences()
    assert "input-x-gradient" not in {line.method for line in advice.table}
    assert "input-x-gradient" not in advice.report.methods
    assert advice.table[0].images > max(place, AIM)


def test_a_refusal_in_a_later_round_leaves_those_who_left_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two methods are exact, and alone in the second round; what was worse was so beside one that does not count."""
    methods = ["input-x-gradient", ("integrated-gradients", {"steps": 2}), GRADIENT, ("rise", {"n": 2})]
    refuse(monkeypatch, 30, "integrated-gradients")
    clock = Clock()
    advice = run(Linear(clock, 0.02), budget=100, methods=methods, clock=clock, data=images(500))
    assert advice.left_out == {"integrated-gradients (steps=2)": "too long"}
    assert advice.method == "input-x-gradient"
    assert advice.table[0].images > 30
    assert set(advice.left_early) == {GRADIENT_NAME, "rise (n=2)"}


def test_a_slow_method_may_refuse_its_second_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, 1, "rise")
    clock = Clock()
    methods = ["input-x-gradient", GRADIENT, ("rise", {"n": 80})]
    advice = run(Linear(clock, 0.01), budget=60, methods=methods, clock=clock, data=images(9))
    assert advice.left_out == {"rise (n=80)": "too long"}
    assert advice.too_slow == {}


def test_a_race_whose_methods_all_refuse_a_sample_has_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, 5, "input-x-gradient", "smoothgrad")
    with pytest.raises(ArgumentError, match=r"input-x-gradient cannot \(too long\), and 1 others likewise"):
        run(methods=["input-x-gradient", GRADIENT])


def test_the_warm_up_is_not_part_of_the_cost() -> None:
    race = Race(Linear(), Pieces(images(3)), Budget(60, Clock()), methods=FOUR, score=ZERO)
    race._warm_up(race.pieces.get(0), race.entrants)
    assert race.run.cost == {"passes": 0, "saved": 0}
