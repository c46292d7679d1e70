"""Intervals, paired tests, corrections, ranks and correlations, beside closed forms and scipy."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import stats

from mhex.errors import ArgumentError
from mhex.stats import intervals as resampling
from mhex.stats import paired_tests as statistics
from mhex.stats.comparison import all_pairs, marked, pair_tests, ranking
from mhex.stats.correlation import correlate, rank_correlation, rank_correlation_p
from mhex.stats.intervals import bootstrap, resampled
from mhex.stats.paired_tests import exchange, sign_flip
from mhex.stats.simultaneous import holm
from support.pairs import paired


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def mean(rows):
    return rows.mean(-2)


def ratio(rows):
    """Of sums, as for the intersection over union of a data set."""
    return (rows[..., 0].sum(-1) / rows[..., 1].sum(-1))[..., None]


def marks(values, higher=True, summary=None):
    return marked(pair_tests(values, summary=summary)[0], higher)


def half_width(interval):
    return float(interval.high - interval.low) / 2


def columns(ranks):
    """Places of all methods as one tensor for each number."""
    return SimpleNamespace(
        **{name: torch.tensor([getattr(r, name) for r in ranks]).double() for name in vars(ranks[0])}
    )


# Spearman


@pytest.mark.parametrize(("count", "least"), [(4, None), (5, 1.0), (6, 0.886), (7, 0.786), (9, 0.7)])
def test_how_high_a_rank_correlation_of_few_values_must_be(count, least):
    """The critical values at 5 %, two-sided, of the tables of Spearman's rho."""
    x = torch.arange(count)
    orders = torch.stack([torch.randperm(count, generator=torch.Generator().manual_seed(k)) for k in range(100)])
    shown = [abs(float(rank_correlation(x, x)))] if rank_correlation_p(x, x) < 0.05 else []
    for y in orders[: 100 if count < 9 else 10]:
        rho, p = abs(float(rank_correlation(x, y))), rank_correlation_p(x, y)
        assert (p < 0.05) is (least is not None and rho > least - 1e-3)
        shown += [rho] if p < 0.05 else []
    assert bool(shown) is (least is not None)


def test_p_of_a_rank_correlation_beside_scipy():
    x, y = draw(6, seed=1), draw(6, seed=2).round(decimals=0)  # with ties
    exact = stats.permutation_test(
        (x.numpy(),), lambda a: stats.spearmanr(a, y).statistic, permutation_type="pairings", n_resamples=np.inf
    )
    assert rank_correlation_p(x, y) == pytest.approx(exact.pvalue)
    many = draw(2, 30, seed=3)
    assert rank_correlation_p(*many) == pytest.approx(stats.spearmanr(*many).pvalue, abs=1e-9)
    assert math.isnan(rank_correlation_p(x, torch.ones(6)))


# The smallest p


def test_p_at_the_floor_of_drawn_flips_is_known():
    far, near = draw(40, seed=5) + 9, draw(40, seed=6) + 0.1
    zero = torch.zeros(40)
    assert paired(far, zero).p == pytest.approx(1 / 10_001)
    assert paired(far, zero).at_floor
    assert paired(far, zero, flips=99).at_floor
    assert not paired(near, zero).at_floor
    assert not paired(far[:8], zero[:8]).at_floor, "all flips of eight images are tried, so p is exact"


# Pearson


def pearson(x, y):
    """The coefficient and its p."""
    row, _ = correlate(x, y, 0.95, ("x", "y"))
    return row.coefficient, row.p_value


def test_pearson_closed_form():
    r, p = pearson(torch.arange(1.0, 6), torch.tensor([2.0, 1.0, 4.0, 3.0, 5.0]))
    assert float(r) == pytest.approx(0.8, abs=1e-12)
    assert float(p) == pytest.approx(2 * stats.t.sf(2.309401, 3), abs=1e-6) == pytest.approx(0.104088, abs=1e-6)


def with_correlation(r, n):
    """Two sides whose correlation is exactly r."""
    x, y = draw(2, n, seed=3)
    x = (x - x.mean()) / (x - x.mean()).norm()
    y = y - y.mean()
    y = y - (x @ y) * x
    return x, r * x + math.sqrt(1 - r * r) * y / y.norm()


def test_pearson_at_many_pairs():
    r, p = pearson(*with_correlation(0.5, 10_004))
    assert float(r) == pytest.approx(0.5)
    assert float(p) == 0.0
    assert float(pearson(*with_correlation(0.028, 10_004))[1]) == pytest.approx(0.005, abs=2e-4)


@pytest.mark.parametrize("shift", [0.0, 1e6])
@pytest.mark.parametrize("size", [1e-200, 1.0, 1e200])
def test_pearson_beside_scipy(shift, size):
    x, y = draw(2, 4, 30)
    y = y + 0.5 * x
    for row in range(4):
        r, p = pearson((x[row] + shift) * size, y[row] * size)
        wanted = stats.pearsonr(x[row].numpy(), y[row].numpy())
        assert r == pytest.approx(wanted.statistic, abs=1e-8)
        assert p == pytest.approx(wanted.pvalue, rel=1e-6)


def test_pearson_without_variance_or_pairs():
    assert math.isnan(pearson(torch.full((10,), 0.1), draw(10))[0])
    assert math.isnan(pearson(torch.full((7,), 0.1).double() + 1e5, draw(7))[1])
    rounded = torch.tensor([0.3] * 5 + [0.1 + 0.2] * 5, dtype=torch.float64)
    assert rounded.unique().numel() == 2  # rounding alone
    assert math.isnan(pearson(rounded, draw(10))[0])
    assert math.isnan(pearson(torch.zeros(10), draw(10))[0])
    assert math.isnan(pearson(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0]))[0])
    assert math.isnan(pearson(torch.zeros(0), torch.zeros(0))[0])
    r, p = pearson(torch.arange(5.0), -torch.arange(5.0))
    assert float(r) == pytest.approx(-1)
    assert float(p) < 1e-12
    with pytest.raises(ArgumentError, match="as many values"):
        pearson(torch.zeros(3), torch.zeros(4))


# Intervals


def test_standard_error_of_the_spec():
    """512 images whose values spread by 0.35: the standard error is 0.015, so the half-width about 0.03."""
    rows = draw(512, 1)
    rows = (rows - rows.mean()) / rows.std() * 0.35
    assert float(resampled(rows, mean).std()) == pytest.approx(0.015468, rel=0.05)
    assert half_width(bootstrap(rows, mean)) == pytest.approx(1.96 * 0.015468, rel=0.08)


@pytest.mark.parametrize("kind", ["percentile", "bca"])
@pytest.mark.parametrize("whole", [False, True], ids=["any", "whole numbers"])
def test_intervals_beside_scipy_on_the_same_draws(kind, whole):
    rows = draw(40, 2).exp()
    rows = rows.ceil().clamp_max(2) if whole else rows  # draws that equal the value itself
    draws = resampled(rows, ratio, 999, seed=5)
    wanted = stats.bootstrap(
        (rows[:, 0].numpy(), rows[:, 1].numpy()),
        lambda a, b, axis: a.sum(axis) / b.sum(axis),
        paired=True,
        vectorized=True,
        n_resamples=0,
        method=kind,
        bootstrap_result=SimpleNamespace(bootstrap_distribution=draws[:, 0].numpy()),
    ).confidence_interval
    found = bootstrap(rows, ratio, 999, seed=5, kind=kind)
    assert float(found.low) == pytest.approx(wanted.low, abs=1e-9)
    assert float(found.high) == pytest.approx(wanted.high, abs=1e-9)


def test_interval_beside_scipy_with_its_own_draws():
    rows = draw(60, 1).exp()
    wanted = stats.bootstrap((rows[:, 0].numpy(),), np.mean, n_resamples=4000, rng=np.random.default_rng(1))
    found = bootstrap(rows, mean, 4000, kind="bca")
    assert float(found.low) == pytest.approx(wanted.confidence_interval.low, abs=0.05)
    assert float(found.high) == pytest.approx(wanted.confidence_interval.high, abs=0.05)


@pytest.mark.parametrize("kind", ["percentile", "bca"])
def test_interval_holds_the_truth_as_often_as_it_says(kind):
    held = 0
    for repeat in range(300):
        rows = draw(50, 1, seed=repeat).exp()  # skewed; its mean is exp(1 / 2)
        found = bootstrap(rows, mean, 300, 0.9, seed=repeat, kind=kind)
        held += bool(found.low <= math.exp(0.5) <= found.high)
    # Both are known to be a little short of 0.9 for 50 skewed values; the spread of the share is 0.02.
    assert 0.80 <= held / 300 <= 0.94


def test_interval_of_a_normal_mean_holds_it():
    rows = draw(300, 80, 1)
    ends = [bootstrap(one, mean, 300, 0.9, seed=k) for k, one in enumerate(rows)]
    held = sum(bool(one.low <= 0 <= one.high) for one in ends) / 300
    assert abs(held - 0.9) < 0.05


def test_parts_of_the_draws_do_not_matter(monkeypatch):
    rows = draw(30, 2)
    whole = resampled(rows, mean, 200)
    flips = sign_flip(rows, flips=300)
    monkeypatch.setattr(resampling, "_CHUNK", 7 * 60)
    monkeypatch.setattr(statistics, "_CHUNK", 7 * 30)
    assert torch.equal(whole, resampled(rows, mean, 200))
    assert torch.equal(flips, sign_flip(rows, flips=300))


def test_draws_without_a_value_are_left_out():
    """A share of the images that were right is not defined in a draw with none of them."""
    rows = torch.tensor([[1.0, 1.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]]).double()
    found = bootstrap(rows, ratio, 500)
    assert (float(found.low), float(found.high)) == (1.0, 1.0)


@pytest.mark.parametrize("kind", ["percentile", "bca"])
def test_a_value_that_is_never_defined_has_no_interval(kind):
    rows = torch.stack([torch.arange(6), torch.zeros(6)], 1).double() * torch.tensor([0.0, 1.0])
    found = bootstrap(rows, lambda part: torch.cat([ratio(part), mean(part)[..., :1] + 1], -1), 50, kind=kind)
    assert found.low.isnan().tolist() == found.high.isnan().tolist() == [True, False]
    assert float(found.low[1]) == float(found.high[1]) == 1.0


def test_intervals_depend_on_the_seed_alone():
    rows = draw(20, 1)
    found = bootstrap(rows, mean, 50, seed=7)
    assert torch.equal(found.low, bootstrap(rows, mean, 50, seed=7).low)
    assert not torch.equal(found.low, bootstrap(rows, mean, 50, seed=8).low)


@pytest.mark.parametrize("kind", ["percentile", "bca"])
@pytest.mark.parametrize("rows", [torch.full((5, 1), 0.3), torch.ones(1, 1)])
def test_interval_of_a_constant_is_a_point(kind, rows):
    found = bootstrap(rows.double(), mean, 100, kind=kind)
    assert float(found.low) == pytest.approx(float(rows[0]), abs=1e-12)
    assert float(found.high) == pytest.approx(float(rows[0]), abs=1e-12)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"confidence": 95}, "between 0 and 1"),
        ({"kind": "normal"}, "percentile"),
        ({"resamples": 0}, "at least one resample"),
    ],
)
def test_wrong_options_of_the_bootstrap(options, words):
    with pytest.raises(ArgumentError, match=words):
        bootstrap(torch.ones(5, 1), mean, **options)
    with pytest.raises(ArgumentError, match="at least one image"):
        bootstrap(torch.ones(0, 1), mean)


# Pairs


def test_paired_closed_form():
    found = paired(torch.ones(5), torch.zeros(5))
    assert (found.difference, found.low, found.high, found.p) == (1.0, 1.0, 1.0, 0.0625)
    assert found.effect == math.inf
    assert found.superiority == 1.0


def test_sign_flip_counts_every_way():
    d = torch.tensor([3.0, -1.0, 2.0, 0.5, -0.25])
    ways = [
        abs(sum((2 * bit - 1) * x for bit, x in zip(signs, d.tolist(), strict=True))) for signs in np.ndindex(*(2,) * 5)
    ]
    wanted = np.mean([way >= 4.25 for way in ways])
    assert float(sign_flip(d)) == pytest.approx(wanted)
    assert float(sign_flip(torch.cat([d, torch.zeros(40)]))) == pytest.approx(wanted)  # these change nothing
    assert float(sign_flip(torch.zeros(30))) == 1.0


def test_sign_flip_adds_one():
    d = torch.ones(40)  # only two of 2^40 ways reach it
    assert float(sign_flip(d)) == pytest.approx(1 / 10_001)


def test_sign_flip_beside_scipy():
    d = draw(25) + 0.35
    wanted = stats.permutation_test(
        (d.numpy(),),
        lambda x, axis: x.sum(axis),
        permutation_type="samples",
        n_resamples=20_000,
        vectorized=True,
        rng=np.random.default_rng(0),
    )
    assert float(sign_flip(d)) == pytest.approx(wanted.pvalue, abs=0.015)


@pytest.mark.parametrize("n", [2, 5, 9, 12])
@pytest.mark.parametrize("whole", [False, True], ids=["any", "whole numbers"])
def test_few_images_are_exact_as_in_scipy(n, whole):
    d = draw(n, seed=n) + 0.4
    d = d.mul(2).round() if whole else d  # ties among the sums, and zeros
    wanted = stats.permutation_test(
        (d.numpy(),), lambda x, axis: x.sum(axis), permutation_type="samples", n_resamples=np.inf, vectorized=True
    )
    assert float(sign_flip(d)) == pytest.approx(wanted.pvalue, abs=1e-12)


@pytest.mark.parametrize("n", [4, 9])
def test_changing_sides_is_exact_as_in_scipy(n):
    """Of ratios of sums; scipy is given numbers of images, those of the second method above those of the first."""
    rows = draw(2, n, 2, seed=n).exp()
    every = rows.flatten(0, 1).numpy()

    def statistic(x, y):
        one, other = (every[side.astype(int)].sum(0) for side in (x, y))
        return one[0] / one[1] - other[0] / other[1]

    numbers = np.arange(2 * n, dtype=float)
    wanted = stats.permutation_test(
        (numbers[:n], numbers[n:]), statistic, permutation_type="samples", n_resamples=np.inf, vectorized=False
    )
    assert float(exchange(rows[0], rows[1], ratio)) == pytest.approx(wanted.pvalue, abs=1e-12)
    assert float(exchange(rows[0].float(), rows[1].float(), ratio)) == pytest.approx(wanted.pvalue, abs=1e-12)


def test_changing_sides_counts_equal_sums_in_single_precision():
    first = torch.tensor([0.1] * 9 + [-0.1] * 2) + 0.7
    second = torch.full((11,), 0.7)
    assert float(exchange(first[:, None], second[:, None], mean)) == float(sign_flip(first.double() - second.double()))


def test_false_alarms_are_as_rare_as_promised():
    p = sign_flip(draw(30, 1000), flips=999)
    assert 0.03 < float((p < 0.05).double().mean()) < 0.07


def test_paired_beside_scipy():
    first, second = draw(2, 30)
    first = first + 0.4
    found = paired(first, second)
    assert found.wilcoxon == pytest.approx(stats.wilcoxon((first - second).numpy()).pvalue)
    d = first - second
    assert found.effect == pytest.approx(float(d.mean() / d.std()))
    assert found.superiority == pytest.approx(float((d > 0).double().mean()))
    assert (found.seed, found.flips, found.resamples, found.n) == (0, 10_000, 2000, 30)
    back = paired(second, first)
    assert (back.difference, back.p) == pytest.approx((-found.difference, found.p))


def test_images_without_a_value_do_not_count():
    first, second = draw(2, 30)
    whole = paired(first, second)
    nan = torch.full((3,), torch.nan)
    more = paired(torch.cat([first, nan, first[:3]]), torch.cat([second, second[:3], nan]))
    assert (more.n, more.wilcoxon) == (30, whole.wilcoxon)
    assert (more.difference, more.low, more.high) == pytest.approx((whole.difference, whole.low, whole.high))
    none = paired(nan, nan)
    assert none.n == 0
    assert math.isnan(none.p)
    same = paired(first, first)
    assert (same.p, same.effect, same.superiority) == (1.0, 0.0, 0.5)
    assert math.isnan(same.wilcoxon)


def test_all_pairs_are_corrected_together():
    values = draw(60, 4) + torch.tensor([0.0, 0.1, 0.5, 1.0])
    found = all_pairs(values)
    assert list(found) == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    assert [one.adjusted for one in found.values()] == holm([one.p for one in found.values()])
    alone = paired(values[:, 1], values[:, 3])
    assert (found[1, 3].p, found[1, 3].low) == pytest.approx((alone.p, alone.low))


def test_many_methods_can_still_differ():
    """With 10 000 flips the corrected p of 561 pairs could never be below 0.05."""
    values = draw(40, 34, seed=1) * 0.01
    values[:, 0] += 1
    assert marks(values) == (True, *(False,) * 33)


@pytest.mark.parametrize("n", [8, 30])
def test_changing_sides_is_flipping_signs_for_a_mean(n):
    first, second = draw(2, n) + torch.tensor([[0.3], [0.0]])
    wanted = paired(first, second, flips=500)
    found = exchange(first[:, None], second[:, None], mean, flips=500)
    assert float(found) == pytest.approx(wanted.p)


def test_pairs_of_ratios():
    """Ratios of sums: the whole is computed again in each draw; more than 20 images are tested by the spread of it."""
    rows = (0.3 * draw(40, 3, 2, seed=6)).exp()
    rows[:, 1, 0] *= 3  # numerators of the second method
    rows[5, 2] = torch.nan
    found = all_pairs(rows, flips=300, resamples=200, summary=ratio)
    totals = ratio(rows.movedim(1, 0))[:, 0]
    ends = bootstrap(rows[:, :2].flatten(1), lambda r: ratio(r[..., :2]) - ratio(r[..., 2:]), 200)
    one = found[0, 1]
    assert one.difference == pytest.approx(float(totals[0] - totals[1]))
    assert (one.low, one.high) == pytest.approx((float(ends.low), float(ends.high)))
    spread = (resampled(rows[:, 0], ratio, 1000) - resampled(rows[:, 1], ratio, 1000)).std()
    assert one.p == pytest.approx(2 * stats.t.sf(abs(one.difference) / float(spread), 39), rel=1e-6)
    assert one.p < 1e-6
    assert found[0, 2].p > 0.05
    assert (one.n, found[0, 2].n) == (40, 39)
    assert math.isnan(one.effect)
    assert math.isnan(one.wilcoxon)
    assert marks(rows, summary=ratio) == (False, True, False)
    assert marks(rows, higher=False, summary=ratio) == (True, False, True)
    with pytest.raises(ArgumentError, match=r"\(n, M, J\)"):
        marks(draw(20, 3), summary=ratio)


def test_holm_steps_down_and_leaves_missing_values_out():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    found = holm([0.01, math.nan, 0.02])
    assert found[::2] == pytest.approx([0.02, 0.02])
    assert math.isnan(found[1])


def test_holm_is_the_closed_test_of_bonferroni():
    """A hypothesis is rejected if every set of hypotheses that holds it is, by its smallest p times its size."""
    draws = np.random.default_rng(0).uniform(0, 0.4, (20, 5)).round(2)  # with ties
    for p in draws:
        sets = [[k for k in range(5) if number >> k & 1] for number in range(1, 32)]
        wanted = [max(min(1.0, len(one) * min(p[one])) for one in sets if k in one) for k in range(5)]
        assert holm(p.tolist()) == pytest.approx(wanted)


def test_false_alarms_among_all_pairs_are_rare():
    """Five methods that are all the same: in few of many tables is any pair told apart."""
    alarms = sum(
        min(float(x) for x in pair_tests(draw(20, 5, seed=k), flips=999)[0].adjusted) < 0.05 for k in range(300)
    )
    assert alarms / 300 < 0.08


# Who is marked


def test_the_best_alone_is_marked_where_it_is_clear():
    values = draw(50, 3) * 0.1 + torch.tensor([0.0, 1.0, 0.5])
    assert marks(values) == (False, True, False)
    assert marks(values, higher=False) == (True, False, False)


def test_all_that_are_not_worse_are_marked():
    noise = draw(50, 3)
    values = noise * 0.1 + torch.tensor([0.0, 1.0, 1.0])
    assert marks(values) == (False, True, True)


def test_the_correction_decides():
    """A pair that would be told apart alone is not among many."""
    p, k = 0.0, 0
    while not 0.02 < p < 0.045:
        k += 1
        values = draw(30, 2, seed=k)
        p = paired(values[:, 0], values[:, 1]).p
    assert sum(marks(values)) == 1
    others = values[:, :1].expand(-1, 6) + 0.05 * draw(30, 6, seed=99)
    assert sum(marks(torch.cat([values, others], 1))) > 1


def test_few_images_mark_everybody():
    values = torch.tensor([[0.0, 1.0]]).repeat(5, 1)
    assert marks(values) == (True, True)  # p is 0.0625 at best


def test_equal_methods_and_missing_ones():
    values = draw(20, 1).repeat(1, 2)
    assert marks(values) == (True, True)
    empty = torch.full((20, 1), torch.nan, dtype=torch.float64)
    assert marks(torch.cat([empty, values], 1)) == (False, True, True)
    assert marks(empty.repeat(1, 2)) == (False, False)
    assert marks(draw(20, 1)) == (True,)
    with pytest.raises(ArgumentError, match=r"\(n, M\)"):
        marks(draw(20))


# Ranks


def test_places_and_their_intervals_follow_clear_differences():
    values = draw(80, 3) * 0.1 + torch.tensor([0.0, 2.0, 1.0])
    found = columns(ranking(values))
    assert found.place.tolist() == [3, 1, 2]
    assert found.place_low.tolist() == found.place_high.tolist() == [3, 1, 2]
    assert found.first.tolist() == [0, 1, 0]
    assert columns(ranking(values, higher=False)).place.tolist() == [1, 3, 2]


def test_ranks_beside_scipy():
    values = draw(30, 4).round(decimals=0)  # with ties
    found = columns(ranking(values, resamples=500, seed=3))
    per_image = torch.from_numpy(stats.rankdata(-values.numpy(), axis=1))
    assert torch.allclose(found.rank, per_image.mean(0))
    ends = bootstrap(per_image, mean, 500, seed=3)
    assert torch.allclose(found.rank_low, ends.low)
    assert torch.allclose(found.rank_high, ends.high)
    assert torch.allclose(found.place, torch.from_numpy(stats.rankdata(-values.mean(0).numpy())))
    assert float(found.first.sum()) == pytest.approx(1)
    assert bool((found.place_low <= found.place).all() & (found.place <= found.place_high).all())


def test_ranks_leave_out_images_without_values():
    values = draw(30, 3)
    values[4, 1] = torch.nan
    kept = values[torch.arange(30) != 4]
    assert torch.equal(columns(ranking(values)).rank, columns(ranking(kept)).rank)
    assert {row.n for row in ranking(values)} == {29}
    with pytest.raises(ArgumentError, match="leave out those that have few"):
        ranking(torch.full((3, 2), torch.nan))
