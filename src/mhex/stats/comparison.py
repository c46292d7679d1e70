"""Comparison of methods on the same images: every pair with tests and intervals, and places."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from scipy import stats
from torch import Tensor

from mhex._settings import check_that
from mhex.stats.correlation import mean_ranks
from mhex.stats.intervals import Summary, bootstrap, resampled
from mhex.stats.paired_tests import PAIR_FLIPS, at_floor, exchange, sign_flip
from mhex.stats.simultaneous import holm

_FLIPS_PER_PAIR = 50  # so that the correction for many pairs leaves a p that can be small enough
_EXCHANGED = 20  # so many images change sides with everything computed again; more are told apart by resamples
_RESAMPLES = 1000


@dataclass(frozen=True)
class Paired:
    """Two methods on the same images."""

    difference: float  # mean of first minus second
    low: float  # ends of its bootstrap interval, with the next
    high: float
    p: float  # two-sided, by flips of signs; for values that are no means, from 21 images on, by t over resamples
    adjusted: float  # the same corrected (Holm) for all pairs that were compared
    wilcoxon: float  # p of Wilcoxon's signed-rank test, as a check; NaN where there is no difference at all
    # Mean difference over its spread (Cohen's d for pairs): 0 without any, infinite where all images have the same.
    effect: float
    superiority: float  # share of images on which the first is higher, ties counting half
    n: int  # images that both have
    seed: int  # of flips and resamples
    flips: int  # how many were drawn, unless so few images differ that all ways to flip were tried
    resamples: int  # of the bootstrap

    @property
    def at_floor(self) -> bool:
        """Whether no drawn flip reached the difference, so that `p` is an upper bound of the true one."""
        return at_floor(self.p, self.flips)

    @property
    def reversed(self) -> Paired:
        """Second minus first."""
        return replace(
            self,
            difference=0.0 - self.difference,  # -0.0 would be printed as such
            low=0.0 - self.high,
            high=0.0 - self.low,
            effect=0.0 - self.effect,
            superiority=1 - self.superiority,
        )


@dataclass(frozen=True, eq=False)
class PairTests:
    """Every pair of methods by one number, each on the images that both have."""

    counts: Tensor  # images of each method, (M,)
    first: Tensor  # the method of each pair with the smaller number, (P,)
    second: Tensor  # the other one, (P,)
    difference: Tensor  # first minus second, (P,); NaN without a common image
    p: Tensor  # two-sided, (P,)
    adjusted: Tensor  # the same corrected (Holm) for all pairs, (P,)
    n: Tensor  # images that both have, (P,)
    flips: int  # how many were drawn, unless all were tried

    def among(self, methods: Sequence[int]) -> PairTests:
        """The tests of some methods alone, numbered anew, and corrected for their pairs."""
        place = torch.full_like(self.counts, -1)
        place[list(methods)] = torch.arange(len(methods))
        selection = (place[self.first] >= 0) & (place[self.second] >= 0)
        p = self.p[selection]
        pairs = (place[self.first[selection]], place[self.second[selection]], self.difference[selection], p)
        return PairTests(self.counts[list(methods)], *pairs, _adjusted(p), self.n[selection], self.flips)

    def against(self, method: int, methods: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Differences of methods less one method, and p corrected for these pairs alone, (len(methods),) each."""
        keys = list(zip(self.first.tolist(), self.second.tolist(), strict=True))
        pairs = torch.tensor([keys.index((min(m, method), max(m, method))) for m in methods], dtype=torch.long)
        sign = torch.tensor([1.0 if m < method else -1.0 for m in methods], dtype=self.p.dtype)
        return sign * self.difference[pairs], _adjusted(self.p[pairs])


def least_p(n: int) -> float:
    """The smallest p that a test by flips of n images can have, where all of them are tried."""
    return 2.0 ** (1 - n) if n else 1.0


def pair_tests(
    values: Tensor, seed: int = 0, flips: int | None = None, summary: Summary | None = None
) -> list[PairTests]:
    """Test every pair of methods on the images that both have, for each output; arguments as for `all_pairs`."""
    valid, table = present(values, summary), values.detach().double().cpu()
    first, second = torch.triu_indices(values.shape[1], values.shape[1], 1)
    common = valid[:, first] & valid[:, second]
    n = common.sum(0)
    flips = max(PAIR_FLIPS, _FLIPS_PER_PAIR * len(first)) if flips is None else flips
    if summary is None:
        d = (table[:, first] - table[:, second]).where(common, 0.0)
        difference = (d.sum(0) / n)[:, None]
        p = sign_flip(d, seed, flips).where(n > 0, torch.nan)[:, None]
    else:
        outputs = summary(torch.zeros(1, table.shape[2], dtype=table.dtype)).shape[-1]
        difference, p = torch.full((2, len(first), outputs), torch.nan, dtype=table.dtype)
        for images, pairs in _by_images(common):
            numbers = first[pairs], second[pairs]
            difference[pairs], p[pairs] = _summary_tests(table[images], *numbers, summary, seed, flips)
    columns = zip(difference.unbind(1), p.unbind(1), strict=True)
    return [PairTests(valid.sum(0), first, second, d, q, _adjusted(q), n, flips) for d, q in columns]


def _adjusted(p: Tensor) -> Tensor:
    return torch.tensor(holm(p), dtype=p.dtype)


def _summary_tests(
    table: Tensor, first: Tensor, second: Tensor, summary: Summary, seed: int, flips: int
) -> tuple[Tensor, Tensor]:
    """Differences of summaries of images (n, M, J), and p, each (P, O); NaN where a difference is not defined."""
    value = summary(table.movedim(1, 0))  # (M, O); NaN for methods that lack some of the images, which have no pair
    difference, pairs = value[first] - value[second], list(zip(first.tolist(), second.tolist(), strict=True))
    if len(table) <= _EXCHANGED:
        return difference, torch.stack([exchange(table[:, i], table[:, j], summary, seed, flips) for i, j in pairs])
    # To compute all of it again for each flip and pair takes minutes for a table. What one image changes is no way
    # out: values at a threshold that is searched for jump. So the spread over resamples, the same for all methods.
    columns = torch.unique(torch.cat([first, second])).tolist()
    draws = {m: resampled(table[:, m], summary, _RESAMPLES, seed).double() for m in columns}
    spread = torch.stack([_spread(draws[i] - draws[j]) for i, j in pairs])
    t = torch.where(difference == 0, 0.0, difference / spread)
    p = torch.from_numpy(2 * stats.t.sf(t.abs().numpy(), len(table) - 1))
    return difference, p.where(spread.isfinite() & difference.isfinite(), torch.nan)


def _spread(draws: Tensor) -> Tensor:
    """Standard deviation over draws (R, O), (O,); NaN where most draws have no value."""
    defined = draws.isfinite()
    n = defined.sum(0)
    mean = draws.where(defined, 0.0).sum(0) / n
    spread = ((draws - mean).square().where(defined, 0.0).sum(0) / (n - 1)).sqrt()
    return spread.where(2 * n > len(draws), torch.nan)


def all_pairs(
    values: Tensor, seed: int = 0, flips: int | None = None, resamples: int = 2000, summary: Summary | None = None
) -> dict[tuple[int, int], Paired]:
    """Every pair of methods, each on the images that both have: a method with few images weakens its own pairs alone.

    Values are per image and method, (n, M), or numbers (n, M, J) with a summary; NaN where an image does not count. A
    summary makes outputs (..., O) of numbers (..., n, J), where the value of a data set is no mean over images; the
    first is compared, and there are no differences of single images, so that effect sizes and Wilcoxon's p are NaN. All
    pairs have the same flips: None for 10 000, or more where there are over 200 pairs. Results are by numbers of two
    methods, the smaller first; without a common image, all but the counts is NaN.
    """
    tested = pair_tests(values, seed, flips, summary)[0]
    valid, table = present(values, summary), values.detach().double().cpu()
    ends = torch.full((2, len(tested.n)), torch.nan, dtype=table.dtype)
    single = torch.full((3, len(tested.n)), torch.nan, dtype=table.dtype)  # wilcoxon, effect, superiority
    for images, pairs in _by_images(valid[:, tested.first] & valid[:, tested.second]):
        places, place = torch.unique(torch.stack([tested.first[pairs], tested.second[pairs]]), return_inverse=True)
        part = table[images][:, places]

        def differences(rows: Tensor, methods: int = len(places), place: Tensor = place) -> Tensor:
            rows = rows.view(*rows.shape[:-1], methods, -1)
            totals = rows.mean(-3)[..., 0] if summary is None else summary(rows.movedim(-2, -3))[..., 0]
            return totals[..., place[0]] - totals[..., place[1]]

        ends[:, pairs] = torch.stack(bootstrap(part.flatten(1), differences, resamples, seed=seed))
        if summary is None:
            single[:, pairs] = _image_numbers(part[:, place[0]] - part[:, place[1]])
    columns = torch.stack([tested.difference, *ends, tested.p, tested.adjusted, *single], 1)
    keys = zip(tested.first.tolist(), tested.second.tolist(), strict=True)
    rows = zip(keys, columns.tolist(), tested.n.tolist(), strict=True)
    return {key: Paired(*[*row, n, seed, tested.flips, resamples]) for key, row, n in rows}


def _by_images(common: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Images, bool (n,), and the pairs that have these in common, of bool (n, P); in most tables all have the same."""
    if not bool(common.any()):
        return
    masks, kind = torch.unique(common, dim=1, return_inverse=True)
    for k, images in enumerate(masks.unbind(1)):
        if bool(images.any()):
            yield images, (kind == k).nonzero()[:, 0]


def _image_numbers(d: Tensor) -> Tensor:
    """P of Wilcoxon, effect size, and share of images where the first is higher, (3, P), of differences (n, P)."""
    wilcoxon = [float(stats.wilcoxon(pair.numpy()).pvalue) if bool(pair.any()) else torch.nan for pair in d.unbind(1)]
    mean = d.mean(0)
    spread = d.std(0) if len(d) > 1 else torch.zeros_like(mean)
    spread = torch.where(spread <= 1e-12 * mean.abs(), 0.0, spread)  # rounding is no spread
    effect = torch.where(mean == 0, 0.0, mean / spread)
    higher = (d > 0).double().mean(0) + (d == 0).double().mean(0) / 2
    return torch.stack([torch.tensor(wilcoxon, dtype=d.dtype), effect, higher])


def present(values: Tensor, summary: Summary | None = None) -> Tensor:
    """Whether an image counts for a method, bool (n, M), of values (n, M), or (n, M, J) with a summary."""
    axes, expectation = (2, "(n, M)") if summary is None else (3, "(n, M, J)")
    right = values.dim() == axes and values.shape[1] > 0
    check_that(right, f"values per image and method, {expectation}", f"shape {tuple(values.shape)}")
    finite = values.detach().cpu().isfinite()
    return finite if summary is None else finite.all(2)


def marked(tested: PairTests, higher: bool = True, level: float = 0.05) -> tuple[bool, ...]:
    """Which methods a table marks as the best: those with values that no other method is shown to be better than.

    A method is out as soon as any other is better on the images that both have, with a corrected p below the level.
    No method is measured by the mean over its own images, which may be the easy ones or the hard ones; nor by one
    method alone, since a method with a few lucky images would be ahead, nothing would be shown to be worse than it,
    and all would be marked. With the same images for all, the best mean is never out. In circles, where each method is
    better than the next on other images, all are out.
    """
    gain = tested.difference.double().nan_to_num() * (1 if higher else -1)
    significant = tested.adjusted.double() < level
    unbeaten = tested.counts > 0
    unbeaten[tested.first[significant & (gain < 0)]] = False
    unbeaten[tested.second[significant & (gain > 0)]] = False
    return tuple(unbeaten.tolist())


@dataclass(frozen=True)
class Rank:
    """Places of one method, 1 the best; equal ones share theirs."""

    place: float  # by the value of all images; and ends of its bootstrap interval
    place_low: float
    place_high: float
    rank: float  # mean over images of the place on each, with its interval; NaN without values of single images
    rank_low: float
    rank_high: float
    first: float  # share of resamples in which it was the best; ties are shared out
    n: int  # images that count for every method


def ranking(
    values: Tensor,
    higher: bool = True,
    resamples: int = 2000,
    confidence: float = 0.95,
    seed: int = 0,
    summary: Summary | None = None,
) -> list[Rank]:
    """Places of methods with intervals, over the images that count for every method.

    Unlike pairs, places need the same images for all: the third of five is not the third of eight. Values and summary
    are as for `all_pairs`; with a summary, there are no places on single images.
    """
    present_in = present(values, summary)
    valid = present_in.all(1)
    least, most = present_in.sum(0).aminmax()
    actual = f"none: the methods have {int(least)} to {int(most)} of {len(valid)} images"
    check_that(bool(valid.any()), "images with values of all methods", actual, "; leave out those that have few")
    methods, sign = values.shape[1], -1 if higher else 1
    table = values.detach().double().cpu()[valid] * (sign if summary is None else 1)
    single = mean_ranks(table) + 1 if summary is None else table.new_full((len(table), methods), torch.nan)
    rows = torch.cat([table.flatten(1), single], 1)

    def places(part: Tensor) -> Tensor:
        numbers, means = part[..., :-methods], part[..., -methods:].mean(-2)
        numbers = numbers.reshape(*numbers.shape[:-1], methods, -1)
        totals = numbers.mean(-3)[..., 0] if summary is None else sign * summary(numbers.movedim(-2, -3))[..., 0]
        on_top = (totals == totals.amin(-1, keepdim=True)).double()
        outputs = torch.cat([mean_ranks(totals) + 1, means, on_top / on_top.sum(-1, keepdim=True)], -1)
        # Where one value is not defined, no method has a place.
        return outputs.where(totals.isfinite().all(-1, keepdim=True), torch.nan)

    draws = resampled(rows, places, resamples, seed)
    low, high = draws.nanquantile(torch.tensor([(1 - confidence) / 2, (1 + confidence) / 2]).to(draws), 0)
    value, place, rank = places(rows), slice(0, methods), slice(methods, 2 * methods)
    ends = [column[part] for part in (place, rank) for column in (value, low, high)]
    numbers = torch.stack([*ends, draws[:, 2 * methods :].nanmean(0)], 1).tolist()
    return [Rank(*[*row, len(rows)]) for row in numbers]
