"""Who won a race: pairs on the images that both have, and how sure that is."""

import math
from types import SimpleNamespace

import pytest
import torch

from mhex.judge.tables import verdicts
from mhex.recommend.score import Difference, above, above_zero, race_result, score_of
from mhex.stats.comparison import pair_tests
from mhex.stats.paired_tests import holm, sign_flip

N = 30


def scores(*means, spread=1.0):
    draw = torch.Generator().manual_seed(0)
    hard = torch.randn(N, generator=draw, dtype=torch.float64) * 5  # images differ more than methods do
    return [hard + mean + spread * torch.randn(N, generator=draw, dtype=torch.float64) for mean in means]


def test_the_best_is_compared_in_pairs():
    best, near, far = scores(2.4, 1.9, 0.0)
    found = race_result({"far": far, "best": best, "near": near}, ["far", "best", "near"])
    assert found.order == ("best", "near", "far")
    assert found.equals == ("near",)
    assert found.worse["far"].p <= found.worse["far"].corrected < 1e-3
    assert found.behind["far"][0] == pytest.approx(float((best - far).mean()))
    assert found.behind["far"][1] > 0 > found.behind["near"][1]
    assert 0.4 < found.sure < 0.95


def test_intervals_of_what_methods_are_behind_are_those_of_95_percent():
    best, far = scores(2.4, 0.0)
    mean, low, high = race_result({"best": best, "far": far}, ["best", "far"]).behind["far"]
    error = float((best - far).std(correction=0)) / math.sqrt(N)
    assert (mean - low) / error == pytest.approx(1.96, abs=0.12)
    assert (high - mean) / error == pytest.approx(1.96, abs=0.12)


def test_a_unit_is_the_root_of_the_mean_variance_between_methods():
    """On one image methods are 2 apart, on the other not at all; a third one counts for one method alone."""
    score = score_of({"faithfulness": 1, "stability": 1}, "image", seed=0)
    rows = {
        "a": torch.tensor([[1.0, 5.0, 5.0], [3.0, 5.0, 5.0], [9.0, 9.0, 9.0]]).double(),
        "b": torch.tensor([[-1.0, 5.0, 5.0], [3.0, 5.0, 5.0], [math.nan] * 3]).double(),
    }
    units = score.with_units(SimpleNamespace(values=lambda label: (None, rows)), ["a", "b"]).units
    assert units["faithfulness"] == pytest.approx(math.sqrt(0.5))
    assert units["stability"] == 1  # all are the same by it


def test_those_who_left_early_are_compared_on_their_own_images():
    best, near, left = scores(2.0, 1.0, 1.9, spread=0.1)
    left = left.clone()
    left[4:] = math.nan
    found = race_result({"best": best, "near": near, "left": left}, ["best", "near"])
    assert found.images == {"best": N, "near": N, "left": 4}
    assert found.behind["left"][0] == pytest.approx(float((best - left)[:4].mean()))
    # Without it there would be no doubt.
    assert race_result({"best": best, "near": near}, ["best", "near"]).sure == 1
    assert found.sure < 1


def test_draws_without_an_image_of_a_method_say_nothing_of_it():
    best, behind = torch.ones(N), torch.zeros(N)
    left = behind.clone()
    left[1:] = math.nan
    assert race_result({"best": best, "behind": behind, "left": left}, ["best", "behind"]).sure == 1


def test_one_who_left_cannot_win():
    """Only those of the last round are told apart by the images of all rounds."""
    best, left = scores(0.0, 5.0)
    left = left.clone()
    left[2:] = math.nan
    found = race_result({"best": best, "left": left}, ["best"])
    assert found.best == "best"
    assert found.behind["left"][0] < 0
    assert found.sure < 0.2


def test_p_is_that_of_flipped_signs():
    d = [one[:9] for one in scores(0.3, 1.5, spread=0.3)]
    d = [d[0] - d[0].mean() + 0.1, d[1] - d[0] + 0.3]
    tests = above_zero({"small": d[0], "large": d[1], "below": -d[1]})
    p = [float(sign_flip(values)) for values in (*d, -d[1])]
    assert [test.p for test in tests.values()] == p
    assert [test.corrected for test in tests.values()] == holm(p)
    assert [test.n for test in tests.values()] == [9, 9, 9]
    assert tests["large"].answer == "yes"
    assert tests["below"].answer == "no"
    short = torch.cat([d[1], torch.full((3,), math.nan)])
    assert above_zero({"large": short}) == above_zero({"large": d[1]})
    assert above_zero({}) == {}


def test_random_is_beaten_by_those_above_it_alone():
    chance, good, same, below = scores(0.0, 2.0, 0.0, -2.0)
    values = {"control:random": chance, "good": good, "same": same, "below": below}
    found = above(values, "control:random", ["good", "same", "below"])
    assert {name: one.answer for name, one in found.items()} == {"good": "yes", "same": "no", "below": "no"}
    few = {name: one[:7] for name, one in values.items()} | {f"same{n}": same[:7] for n in range(40)}
    few["good"] = few["control:random"] + 1
    assert above(few, "control:random", [*few][1:])["good"].answer == "likely"
    # The signs of five images are the same by chance once in sixteen times.
    five = {name: one[:5] for name, one in few.items()}
    assert above(five, "control:random", ["good"])["good"].answer == "unknown"
    words = [
        Difference(1, 0.01, 0.04, 9),
        Difference(1, 0.01, 0.2, 9),
        Difference(1, 0.1, 0.2, 9),
        Difference(-1, 0.01, 0.01, 9),
    ]
    assert [one.answer for one in words] == ["yes", "likely", "no", "no"]
    assert [Difference(mean, 0.1, 1.0, n).answer for mean, n in ((1, 7), (-1, 7), (math.nan, 0))] == ["unknown"] * 3


def test_tables_say_the_same_of_random_maps():
    drawn = scores(0.0, 2.0, 0.5, 0.3, 0.0, -2.0)
    names = ["control:random", *"abcde"]
    values = dict(zip(names, drawn, strict=True))
    table = verdicts(names, pair_tests(torch.stack(drawn, 1))[0], higher=True)
    found = above(values, "control:random", names[1:])
    assert {name for name, one in found.items() if one.answer != "yes"} == table.doubtful
    assert table.doubtful


def test_areas_at_random_levels_can_be_raced_by():
    score = score_of(("balanced", {"grid": "random"}), "image", seed=3)
    sweep = score.metric.metric.protocol.sweep
    assert (sweep.grid, sweep.steps, sweep.seed) == ("random", 8, 3)
    assert "grid=random" in score.words
    assert score_of("balanced", "image", seed=3).metric.metric.protocol.sweep.grid == "even"
    assert score_of("deletion:quick", "image", seed=0).metric.metric.protocol.grid == "random"
