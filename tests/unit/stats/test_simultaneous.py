"""Simultaneous tests and intervals, beside exact flips of signs and known cases."""

import math

import pytest
import torch

from mhex.errors import ArgumentError
from mhex.stats import simultaneous as together
from mhex.stats.simultaneous import MIN_IMAGES, best_set, means_with_intervals, shown_above_zero


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_a_pair_is_told_apart_from_six_images_on():
    """All images speak for the first: 2 of 2^n flips look alike, which is below 5 % from six images on."""
    for images, told in ((5, False), (6, True)):
        values = torch.stack([1 + 0.1 * draw(images).abs(), torch.zeros(images)], 1)
        assert best_set(values).tolist() == [True, not told]
    assert MIN_IMAGES == 6


def test_one_side_is_tested():
    values = draw(30, 4) * 0.5 + torch.tensor([2.0, 0.0, -2.0, 1.0])
    assert shown_above_zero(values).tolist() == [True, False, False, True]


def test_a_constant_is_shown_and_zeros_are_not():
    values = torch.tensor([1.0, 0.0, -1.0]).expand(8, 3)
    assert shown_above_zero(values).tolist() == [True, False, False]


def test_flips_are_exact_for_few_images():
    """For one column without skewness, p is the share of flips with as large a sum."""
    d = draw(9, 1, seed=3).abs() - 0.4
    observed, drawn = together._statistics(d, 0, hall=False)
    signs = 1 - 2 * ((torch.arange(2**9)[:, None] >> torch.arange(9)) & 1).double()
    exact = float(((signs @ d) >= d.sum() - 1e-9).double().mean())
    assert float(together._p(observed, drawn)) == pytest.approx(exact)


def test_skewed_samples_count_less_on_their_short_side():
    """A sample below 0 with a long side up: the images that it lacks may be the large ones."""
    d = torch.cat([torch.full((11,), -1.0), torch.tensor([2.0])])[:, None].double() + 0.01 * draw(12, 1)
    plain, hall = (float(together._statistics(d, 0, hall=hall)[0]) for hall in (False, True))
    assert plain < hall < 0
    plain, hall = (float(together._statistics(-d, 0, hall=hall)[0]) for hall in (False, True))
    assert plain > hall > 0


def test_steps_show_more_than_one():
    """Once the far ones are out, fewer pairs are left, and less is asked of them."""
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(40, 12, generator=generator, dtype=torch.float64)
    values = noise + torch.tensor([0.85, 0.0, *[-9.0] * 10], dtype=torch.float64)
    alone = best_set(values[:, :2]).tolist()
    assert best_set(values).tolist()[:2] == alone == [True, False]


def test_methods_in_a_circle_all_stay():
    a = torch.full((30,), math.nan, dtype=torch.float64)
    first, second, third = a.clone(), a.clone(), a.clone()
    first[:10], second[:10] = 1, 0
    second[10:20], third[10:20] = 1, 0
    third[20:], first[20:] = 1, 0
    assert best_set(torch.stack([first, second, third], 1)).all()


def test_intervals_cover_all_and_grow_with_their_number():
    values = draw(40, 12)
    means, (low, high) = means_with_intervals(values)
    assert torch.allclose(means, values.mean(0))
    single = means_with_intervals(values[:, :1])[1]
    error = float(values[:, 0].std()) / math.sqrt(40)
    assert float(single.high - single.low) / 2 / error == pytest.approx(2.02, abs=0.12)  # Student's t
    assert float(high[0] - low[0]) > 1.25 * float(single.high[0] - single.low[0])


def test_missing_images_do_not_count():
    values = draw(20, 3)
    values[9:, 1] = math.nan
    values[5:, 2] = math.nan
    means, (low, high) = means_with_intervals(values)
    assert float(means[1]) == pytest.approx(float(values[:9, 1].mean()))
    assert low.isnan().tolist() == high.isnan().tolist() == [False, False, True]
    assert not bool(shown_above_zero(values.abs() + 1)[2])


def test_the_seed_decides_and_wrong_shapes_are_told():
    values = draw(40, 5)
    assert torch.equal(means_with_intervals(values, seed=1)[1].low, means_with_intervals(values, seed=1)[1].low)
    assert not torch.equal(means_with_intervals(values, seed=1)[1].low, means_with_intervals(values, seed=2)[1].low)
    for call in (best_set, shown_above_zero, means_with_intervals):
        with pytest.raises(ArgumentError, match="shape"):
            call(values[0])
