"""Who won a race: pairs on the images that both have, the confidence set, and answers beside control maps."""

import math

import pytest
import torch

from mhex.recommend.result import behind_best, beside_random, means_with_spans, race_result, shown_above

N = 30


def scores(*means, spread=1.0):
    draw = torch.Generator().manual_seed(0)
    hard = torch.randn(N, generator=draw, dtype=torch.float64) * 5  # images differ more than methods do
    return [hard + mean + spread * torch.randn(N, generator=draw, dtype=torch.float64) for mean in means]


def cut(values, count):
    values = values.clone()
    values[count:] = math.nan
    return values


def test_the_best_is_compared_in_pairs():
    best, near, far = scores(2.4, 1.9, 0.0)
    found = race_result({"far": far, "best": best, "near": near}, ["far", "best", "near"])
    assert found.order == ("best", "near", "far")
    assert found.equals == ("near",)
    assert found.worse == {"far": "yes", "best": "no", "near": "no"}
    assert found.behind["far"][0] == pytest.approx(float((best - far).mean()))
    assert found.behind["far"][1] > 0 > found.behind["near"][1]
    assert 0.4 < found.sure < 0.95


def test_an_image_that_one_method_lacks_decides_nothing():
    best, other = scores(2.4, 0.0)
    other[3] = math.nan
    # A mean over images that only one of them has would be of other images, or no number at all.
    for last in (["best", "other"], ["other", "best"]):
        assert race_result({"best": best, "other": other}, last).best == "best"
    lucky = best - 1.0
    best[3], lucky[3] = -1000.0, math.nan
    assert race_result({"best": best, "lucky": lucky}, ["lucky", "best"]).best == "best"


def test_ties_are_not_ahead():
    best, _ = scores(2.4, 0.0)
    assert race_result({"best": best, "same": best.clone()}, ["best", "same"]).sure == 1


def test_intervals_grow_with_the_number_of_methods():
    best, far, *others = scores(2.4, 0.0, *[0.0] * 10)
    two = behind_best({"best": best, "far": far}, "best")["far"]
    many = behind_best({"best": best, "far": far, **{f"m{n}": one for n, one in enumerate(others)}}, "best")["far"]
    assert two[0] == pytest.approx(many[0])
    assert two[2] - two[0] == pytest.approx(2.0 * float((best - far).std()) / math.sqrt(N), rel=0.1)
    assert many[2] - many[0] > 1.4 * (two[2] - two[0])


def test_those_who_left_early_are_undecided_and_compared_on_their_own_images():
    best, near, left = scores(2.0, 1.0, 1.9, spread=0.1)
    left = cut(left, 8)
    values = {"best": best, "near": near, "left": left}
    found = race_result(values, ["best", "near"])
    assert found.images == {"best": N, "near": N, "left": 8}
    assert found.worse == {"best": "no", "near": "yes", "left": "undecided"}
    assert "left" not in found.equals
    assert found.behind["left"][0] == pytest.approx(float((best - left)[:8].mean()))
    assert race_result(values, ["best", "near"], worse=["left"]).worse["left"] == "yes"


def test_one_who_left_cannot_win():
    best, left = scores(0.0, 5.0)
    found = race_result({"best": best, "left": cut(left, 6)}, ["best"])
    assert found.best == "best"
    assert found.behind["left"][0] < 0


def test_few_images_claim_nothing():
    values = {name: cut(one, 5) for name, one in zip("ab", scores(9.0, 0.0, spread=0.1), strict=True)}
    found = race_result(values, ["a", "b"])
    assert found.sure is None
    assert found.worse == {"a": "undecided", "b": "undecided"}
    assert math.isnan(found.behind["b"][1])
    assert found.equals == ()


def test_random_is_beaten_by_those_above_it_alone():
    chance, good, same, below, weak = scores(0.0, 4.0, 0.0, -2.0, 0.3, spread=0.2)
    values = {"control:random": chance, "good": good, "same": same, "below": below, "weak": weak}
    found = beside_random(values, "control:random", ["good", "same", "below", "weak"], "good")
    assert found == {"good": "above", "same": "negligible", "below": "negligible", "weak": "negligible"}
    # Without a lead of the best that is shown, nothing is negligible.
    found = beside_random(values, "control:random", ["same", "below"], "same")
    assert set(found.values()) == {"undecided"}
    few = {name: cut(one, 5) for name, one in values.items()}
    assert set(beside_random(few, "control:random", ["good", "same"], "good").values()) == {"undecided"}


def test_what_is_between_is_undecided():
    chance, good, between = scores(0.0, 1.5, 0.3)
    between = between - (between - chance).mean() + 0.3
    values = {"control:random": chance, "good": good, "between": between}
    found = beside_random(values, "control:random", ["good", "between"], "good")
    assert found == {"good": "above", "between": "undecided"}
    assert shown_above(values, "control:random", ["good", "between"]) == {"good": True, "between": False}
    assert shown_above(values, "control:random", []) == {}


def test_means_are_of_the_images_of_each():
    first, second = scores(1.0, 2.0)
    found = means_with_spans({"first": first, "second": cut(second, 9), "few": cut(second, 3)})
    assert found["second"][0] == pytest.approx(float(second[:9].mean()))
    for name in ("first", "second"):
        mean, low, high = found[name]
        assert low < mean < high
    assert math.isnan(found["few"][1])
