"""Who won a race: pairs on the images that both have, and how sure that is."""

import math

import pytest
import torch
from scipy import stats

from mhex.bench.outcome import above, larger, outcome_of, said

N = 30


def scores(*means, spread=1.0):
    draw = torch.Generator().manual_seed(0)
    hard = torch.randn(N, generator=draw, dtype=torch.float64) * 5  # images differ more than methods do
    return [hard + mean + spread * torch.randn(N, generator=draw, dtype=torch.float64) for mean in means]


def test_the_best_is_compared_in_pairs():
    best, near, far = scores(2.4, 1.9, 0.0)
    found = outcome_of({"far": far, "best": best, "near": near}, ["far", "best", "near"])
    assert found.order == ("best", "near", "far")
    assert found.equals == ("near",)
    assert found.worse["far"][0] <= found.worse["far"][1] < 1e-4
    assert found.behind["far"][0] == pytest.approx(float((best - far).mean()))
    assert found.behind["far"][1] > 0 > found.behind["near"][1]
    assert 0.4 < found.sure < 0.95


def test_those_who_left_early_are_compared_on_their_own_images():
    best, near, left = scores(2.0, 1.0, 1.9, spread=0.1)
    left = left.clone()
    left[4:] = math.nan
    found = outcome_of({"best": best, "near": near, "left": left}, ["best", "near"])
    assert found.images == {"best": N, "near": N, "left": 4}
    assert found.behind["left"][0] == pytest.approx(float((best - left)[:4].mean()))
    # Without it there would be no doubt.
    assert outcome_of({"best": best, "near": near}, ["best", "near"]).sure == 1
    assert found.sure < 1


def test_one_who_left_cannot_win():
    """Only those of the last round are told apart by the images of all rounds."""
    best, left = scores(0.0, 5.0)
    left = left.clone()
    left[2:] = math.nan
    found = outcome_of({"best": best, "left": left}, ["best"])
    assert found.best == "best"
    assert found.behind["left"][0] < 0
    assert found.sure < 0.2


def test_p_is_that_of_scipy():
    d = scores(0.3)[0][:9]
    assert larger(d) == pytest.approx(stats.ttest_1samp(d.numpy(), 0, alternative="greater").pvalue)
    assert larger(d[:1]) == 1
    assert larger(torch.full((5,), 2.0)) == 0.5**5
    assert larger(torch.full((5,), -2.0)) == larger(torch.zeros(5)) == 1


def test_random_is_beaten_by_those_above_it_alone():
    chance, good, same, below = scores(0.0, 2.0, 0.0, -2.0)
    values = {"control:random": chance, "good": good, "same": same, "below": below}
    found = above(values, "control:random", ["good", "same", "below"])
    assert found == {"good": "yes", "same": "no", "below": "no"}
    few = {name: one[:4] for name, one in values.items()} | {f"same{n}": same[:4] for n in range(40)}
    assert above(few, "control:random", [*few][1:])["good"] == "likely"
    assert [said(0.01, 0.04), said(0.01, 0.2), said(0.1, 0.2)] == ["yes", "likely", "no"]
