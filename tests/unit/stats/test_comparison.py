"""Pairs of methods that do not have the same images, and who is marked then."""

import math

import pytest
import torch

from mhex.errors import ArgumentError
from mhex.stats.comparison import all_pairs, marked, pair_tests
from mhex.stats.paired_tests import exchange, sign_flip
from support.pairs import paired

NAN = math.nan
FIELDS = ("difference", "low", "high", "p", "wilcoxon", "effect", "superiority", "n", "seed", "flips", "resamples")


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def ratio(rows):
    """Of sums, as for the intersection over union of a data set."""
    return (rows[..., 0].sum(-1) / rows[..., 1].sum(-1))[..., None]


def mean(rows):
    return rows.mean(-2)


def marks(values, summary=None):
    return marked(pair_tests(values, summary=summary)[0])


def with_holes(n=40, methods=4):
    values = draw(n, methods) + 0.3 * torch.arange(methods)
    values[:12, 0] = NAN
    values[30:, 1] = NAN
    values[5, 2] = NAN
    return values


def test_every_pair_is_compared_on_the_images_that_both_have():
    values = with_holes()
    found = all_pairs(values)
    assert {key: one.n for key, one in found.items()} == {
        **{(0, 1): 18, (0, 2): 28, (0, 3): 28},
        **{(1, 2): 29, (1, 3): 30, (2, 3): 39},
    }
    for (i, j), one in found.items():
        alone = paired(values[:, i], values[:, j])
        assert [getattr(one, name) for name in FIELDS] == pytest.approx([getattr(alone, name) for name in FIELDS])
        both = (values[:, i] - values[:, j]).isfinite()
        exact = paired(values[both, i], values[both, j])
        assert (one.difference, one.wilcoxon) == pytest.approx((exact.difference, exact.wilcoxon))
        assert (one.low, one.high) == pytest.approx((exact.low, exact.high))
        assert one.p == pytest.approx(exact.p, abs=0.03)  # other flips


def test_a_sparse_method_weakens_its_own_pairs_alone():
    values = draw(60, 3) * 0.3 + torch.tensor([0.0, 0.3, 0.6])
    whole = all_pairs(values, flips=20_000)
    sparse = torch.full((60, 1), NAN, dtype=torch.float64)
    sparse[:3] = 0.5
    more = all_pairs(torch.cat([values, sparse], 1), flips=20_000)
    for key, one in whole.items():
        assert (more[key].n, more[key].p, more[key].low) == (60, one.p, one.low)
        assert more[key].adjusted < 0.05
    assert [more[k, 3].n for k in range(3)] == [3, 3, 3]
    assert more[0, 3].p >= 0.25


def test_summaries_on_the_images_that_both_have():
    rows = (0.9 * draw(16, 3, 2, seed=1)).exp()
    rows[:6, 0] = NAN
    rows[3, 2, 1] = NAN
    found = all_pairs(rows, flips=300, resamples=100, summary=ratio)
    assert [one.n for one in found.values()] == [10, 10, 15]
    both = rows[torch.arange(16) != 3][:, 1:]
    wanted = exchange(both[:, 0], both[:, 1], ratio, flips=300)
    assert (found[1, 2].p, found[1, 2].difference) == pytest.approx(
        (float(wanted), float(ratio(both[:, 0]) - ratio(both[:, 1])))
    )
    apart = torch.full((10, 2, 2), NAN, dtype=torch.float64)
    apart[:5, 0], apart[5:, 1] = 1.0, 2.0
    nothing = all_pairs(apart, resamples=10, summary=ratio)[0, 1]
    assert nothing.n == 0
    assert math.isnan(nothing.p)
    assert math.isnan(nothing.difference)


@pytest.mark.parametrize("summary", [None, ratio])
@pytest.mark.parametrize(("n", "methods"), [(0, 2), (5, 1), (0, 1)])
def test_nothing_to_compare(n, methods, summary):
    values = torch.ones((n, methods) if summary is None else (n, methods, 2))
    assert [one.n for one in all_pairs(values, summary=summary).values()] == [0] * (methods - 1)
    assert marks(values, summary=summary) == (n > 0,) * methods


def test_a_reversed_comparison_is_that_of_the_reversed_pair():
    values = with_holes()
    one, back = paired(values[:, 0], values[:, 2]), paired(values[:, 2], values[:, 0])
    turned = one.reversed
    assert [getattr(turned, name) for name in FIELDS] == pytest.approx(
        [getattr(back, name) for name in FIELDS], rel=1e-9
    )
    assert turned.low <= turned.difference <= turned.high
    assert turned.reversed == one
    assert str(paired(values[:, 0], values[:, 0]).reversed.difference) == "0.0"


# Values that are no means


@pytest.mark.parametrize("shift", [0.0, 0.1, 0.2])
def test_spread_over_resamples_is_close_to_changed_sides(shift):
    rows = (0.4 * draw(120, 2, 2, seed=3)).exp()
    rows[:, 1, 0] *= 1 + shift
    found = pair_tests(rows, flips=2000, summary=ratio)[0]
    wanted = float(exchange(rows[:, 0], rows[:, 1], ratio, flips=2000))
    assert float(found.p) == pytest.approx(wanted, abs=0.03)


def test_false_alarms_of_ratios_are_as_rare_as_promised():
    rows = draw(400, 25, 2, 2, seed=4).mul(0.5).exp()
    p = torch.tensor([float(pair_tests(one, flips=199, summary=ratio)[0].p) for one in rows])
    assert 0.02 < float((p <= 0.05).double().mean()) < 0.08


def read_at_the_best(part):
    """Half of the numbers are criteria of thresholds, half values: the value where the criterion is highest."""
    criteria, values = part.mean(-2).chunk(2, -1)
    return values.gather(-1, criteria.argmax(-1, keepdim=True))


@pytest.mark.parametrize("seed", [5, 7, 8])
def test_a_value_at_a_searched_threshold_is_told_apart(seed):
    """The threshold changes with almost every image that is left out, and the value that is read there with it."""
    rows = 0.1 * draw(60, 2, 4, seed=seed) + torch.tensor([[0.5, 0.5, 0.2, 0.3], [0.5, 0.5, 0.4, 0.5]])
    assert float(pair_tests(rows, flips=2000, summary=read_at_the_best)[0].p) < 0.01


@pytest.mark.parametrize(("criteria", "most"), [(-((torch.arange(10) - 4.5) / 10).square(), 0.08), ([0.5, 0.5], 0.2)])
def test_false_alarms_at_searched_thresholds_are_few(criteria, most):
    """Of ten thresholds they are as rare as promised; of two that are exactly as good, one in six, as the docs say."""
    criteria = torch.as_tensor(criteria).double()
    truth = torch.cat([criteria, torch.linspace(0, 1, len(criteria)).double()])
    rows = 0.3 * draw(150, 60, 2, len(truth), seed=9) + truth
    p = torch.tensor([float(pair_tests(one, flips=199, summary=read_at_the_best)[0].p) for one in rows])
    assert float((p <= 0.05).double().mean()) < most


def test_no_difference_and_one_that_never_changes():
    same = draw(30, 1, 2, seed=2).exp().expand(30, 2, 2)
    assert float(pair_tests(same, summary=ratio)[0].p) == 1
    fixed = torch.ones(30, 2, 2, dtype=torch.float64)
    fixed[:, 1, 0] = 2
    assert float(pair_tests(fixed, summary=ratio)[0].p) < 1e-6


def test_all_outputs_are_tested_at_once():
    rows = (0.3 * draw(30, 3, 2)).exp()

    def both(part):
        return torch.cat([ratio(part), ratio(part.flip(-1))], -1)

    found = pair_tests(rows, flips=300, summary=both)
    assert len(found) == 2
    for k, one in enumerate(found):
        alone = pair_tests(rows, flips=300, summary=lambda part, k=k: both(part)[..., k : k + 1])[0]
        assert torch.allclose(one.p, alone.p, rtol=1e-9)
        assert torch.allclose(one.adjusted, alone.adjusted, rtol=1e-9)


def test_a_difference_that_is_not_defined_has_no_p():
    rows = torch.ones(30, 2, 2, dtype=torch.float64)
    rows[:, 1, 1] = 0
    rows[:, 1, 0] = 0
    for n in (8, 30):
        assert math.isnan(float(pair_tests(rows[:n], flips=50, summary=ratio)[0].p))
    with pytest.raises(ArgumentError, match="finite differences"):
        sign_flip(torch.tensor([1.0, NAN, 2.0]))


# Who is marked


def test_other_images_do_not_make_a_method_the_best():
    """Easy images for one: its mean is the highest, and it is worse wherever it can be compared."""
    ease = torch.linspace(0, 10, 60, dtype=torch.float64)[:, None]
    values = ease + 0.1 * draw(60, 3) + torch.tensor([1.0, 0.9, 0.0])
    values[:40, 2] = NAN
    assert int(values.nanmean(0).argmax()) == 2
    assert marks(values) == (True, False, False)
    values[:40, 2], values[20:, 2] = values[:40, 0] + 1, NAN  # hard images and better on each
    assert int(values.nanmean(0).argmin()) == 2
    assert marks(values) == (False, False, True)


@pytest.mark.parametrize("lucky", [-5.0, 5.0])
def test_a_few_images_change_nothing_for_the_others(lucky):
    """With three images nothing is shown, neither for the method nor against it."""
    values = draw(60, 3) * 0.1 + torch.tensor([0.0, 0.5, 1.0])
    sparse = torch.full((60, 1), NAN, dtype=torch.float64)
    sparse[:3] = values[:3].mean() + lucky
    assert marks(torch.cat([values, sparse], 1)) == (False, False, True, True)


def test_methods_of_other_data_are_judged_among_themselves():
    values = torch.full((80, 4), NAN, dtype=torch.float64)
    values[:40, :2] = draw(40, 2) * 0.1 + torch.tensor([0.0, 1.0])
    values[40:, 2:] = draw(40, 2) * 0.1 + torch.tensor([9.0, 5.0])
    assert marks(values) == (False, True, True, False)


def test_few_images_do_not_beat_the_best():
    """However far a method is ahead on them."""
    values = torch.full((40, 4), NAN, dtype=torch.float64)
    values[:, :3] = draw(40, 3) * 0.1 + torch.tensor([1.0, 1.0, 0.0])
    values[:2, 0], values[:2, 3] = NAN, -50.0
    found = all_pairs(values)
    assert 0 < found[0, 1].difference < 1 < found[1, 3].difference
    assert marks(values)[:2] == (True, True)


def test_cyclic_wins_mark_no_method():
    """Each better than the next, on images that the third does not have."""
    values = torch.full((60, 3), NAN, dtype=torch.float64)
    for k in range(3):
        part = slice(20 * k, 20 * (k + 1))
        values[part, k], values[part, (k + 1) % 3] = 1.0, 0.0
    assert marks(values) == (False, False, False)


def test_better_than_another_is_better_than_all_below():
    """With the same images for all, the rule is that of the best mean: alone where it beats every other."""
    for seed in range(60):
        values = draw(25, 5, seed=seed) * draw(1, 5, seed=seed + 1000).exp() + 0.3 * torch.arange(5)
        best, found = int(values.mean(0).argmax()), marks(values)
        assert found[best]
        pairs = all_pairs(values, resamples=2)
        worse = [k != best and pairs[min(k, best), max(k, best)].adjusted < 0.05 for k in range(5)]
        assert not any(flag and bad for flag, bad in zip(found, worse, strict=True))
        assert all(worse[k] for k in range(5) if k != best) == (sum(found) == 1)
