"""Who is marked in a column of a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from scipy import stats
from torch import Tensor

from mhex.errors import ArgumentError
from mhex.stats.intervals import Summary, bootstrap, resampled
from mhex.stats.paired_tests import FLIPS, exchange, holm, sign_flip

_FLIPS_PER_PAIR = 50  # so that the correction for many pairs leaves a p that can be small enough
_EXCHANGED = 20  # so many images change sides with everything computed again; more are told apart by resamples
_RESAMPLES = 1000
_NAN = float("nan")
_NUMBERS = ("difference", "low", "high", "p", "adjusted", "wilcoxon", "effect", "superiority")


@dataclass(frozen=True)
class Paired:
    """Two methods on the same images.

    Attributes:
        difference: Mean of first minus second.
        low, high: Ends of its bootstrap interval.
        p: Of the sign-flip test, two-sided; for values that are no means, from 21 images on, of Student's t over
            resamples.
        adjusted: The same corrected (Holm) for all pairs that were compared.
        wilcoxon: P of Wilcoxon's signed-rank test, as a check; NaN where there is no difference at all.
        effect: Mean difference over its spread (Cohen's d for pairs); 0 where there is no difference at all, infinite
            where it is the same for all images.
        superiority: Share of images on which the first is higher, ties counting half.
        n: Number of images that both have.
        seed: Of flips and resamples.
        flips: How many were drawn, unless so few images differ that all ways to flip were tried.
        resamples: Of the bootstrap.
    """

    difference: float
    low: float
    high: float
    p: float
    adjusted: float
    wilcoxon: float
    effect: float
    superiority: float
    n: int
    seed: int
    flips: int
    resamples: int

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
    """Every pair of methods by one number, each on the images that both have.

    Attributes:
        counts: Images of each method, (M,).
        first, second: The methods of each pair, (P,), the smaller number first.
        difference: First minus second, (P,); NaN without a common image.
        p: Two-sided, (P,).
        adjusted: Corrected (Holm) for all pairs, (P,).
        n: Images that both have, (P,).
        flips: How many were drawn, unless all were tried.
    """

    counts: Tensor
    first: Tensor
    second: Tensor
    difference: Tensor
    p: Tensor
    adjusted: Tensor
    n: Tensor
    flips: int

    def among(self, methods: Sequence[int]) -> PairTests:
        """The same for some methods alone, numbered anew, and corrected for their pairs."""
        place = torch.full_like(self.counts, -1)
        place[list(methods)] = torch.arange(len(methods))
        kept = (place[self.first] >= 0) & (place[self.second] >= 0)
        p = self.p[kept]
        return replace(
            self,
            counts=self.counts[list(methods)],
            first=place[self.first[kept]],
            second=place[self.second[kept]],
            difference=self.difference[kept],
            p=p,
            adjusted=torch.tensor(holm(p), dtype=p.dtype),
            n=self.n[kept],
        )

    def against(self, method: int, others: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Of each other less this method: difference, and p corrected for these pairs alone, (len(others),) each."""
        pairs = torch.tensor(
            [int(((self.first == min(m, method)) & (self.second == max(m, method))).nonzero()) for m in others]
        ).long()
        sign = torch.tensor([1.0 if m < method else -1.0 for m in others], dtype=self.p.dtype)
        p = self.p[pairs]
        return sign * self.difference[pairs], torch.tensor(holm(p), dtype=p.dtype)


def least_p(n: int) -> float:
    """The smallest p that a test by flips of n images can have, where all of them are tried."""
    return 2.0 ** (1 - n) if n else 1.0


def pair_tests(
    values: Tensor,
    seed: int = 0,
    flips: int | None = None,
    clusters: Tensor | None = None,
    summary: Summary | None = None,
) -> list[PairTests]:
    """Test every pair of methods on the images that both have, for each output; arguments as for `all_pairs`."""
    there, table = present(values, summary), values.detach().double().cpu()
    first, second = torch.triu_indices(values.shape[1], values.shape[1], 1)
    both = there[:, first] & there[:, second]
    n = both.sum(0)
    flips = max(FLIPS, _FLIPS_PER_PAIR * len(first)) if flips is None else flips
    groups = None if clusters is None else torch.as_tensor(clusters).cpu()
    if summary is None:
        d = (table[:, first] - table[:, second]).where(both, 0.0)
        difference = (d.sum(0) / n)[:, None]
        p = sign_flip(_sums(d, groups), seed, flips).where(n > 0, torch.nan)[:, None]
    else:
        outputs = summary(torch.zeros(1, table.shape[2], dtype=table.dtype)).shape[-1]
        difference, p = torch.full((2, len(first), outputs), torch.nan, dtype=table.dtype)
        for images, pairs in _alike(both):
            own = None if groups is None else groups[images]
            found = _of_summaries(table[images], first[pairs], second[pairs], summary, seed, flips, own)
            difference[pairs], p[pairs] = found
    return [
        PairTests(there.sum(0), first, second, d, one, torch.tensor(holm(one), dtype=one.dtype), n, flips)
        for d, one in zip(difference.unbind(1), p.unbind(1), strict=True)
    ]


def _of_summaries(
    table: Tensor, first: Tensor, second: Tensor, summary: Summary, seed: int, flips: int, groups: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Differences of summaries of images (n, M, J), and p, each (P, O); NaN where a difference is not defined."""
    value = summary(table.movedim(1, 0))  # (M, O); NaN for methods that lack some of the images, which have no pair
    difference = value[first] - value[second]
    units = len(table) if groups is None else len(torch.unique(groups))
    if units <= _EXCHANGED:
        tested = [
            exchange(table[:, i], table[:, j], summary, seed, flips, groups)
            for i, j in zip(first.tolist(), second.tolist(), strict=True)
        ]
        p = torch.stack(tested)
    else:
        # To compute all of it again for each flip and pair takes minutes for a table. What one image changes is no way
        # out: values at a threshold that is searched for jump. So the spread over resamples, the same for all methods.
        used = torch.unique(torch.cat([first, second])).tolist()
        drawn = {m: resampled(table[:, m], summary, _RESAMPLES, seed, groups).double() for m in used}
        pairs = list(zip(first.tolist(), second.tolist(), strict=True))
        spread = torch.stack([_spread(drawn[i] - drawn[j]) for i, j in pairs])
        p = _of_spread(difference, spread, units)
    return difference, p


def _spread(draws: Tensor) -> Tensor:
    """Standard deviation over draws (R, O), (O,); NaN where most draws have no value."""
    there = draws.isfinite()
    kept = draws.where(there, 0.0)
    n = there.sum(0)
    mean = kept.sum(0) / n
    spread = ((kept - mean).square().where(there, 0.0).sum(0) / (n - 1)).sqrt()
    return spread.where(2 * n > len(draws), torch.nan)


def _of_spread(difference: Tensor, spread: Tensor, units: int) -> Tensor:
    """Two-sided p of Student's t of differences over their spread; 1 for no difference, NaN for none defined."""
    t = torch.where(difference == 0, 0.0, difference / spread)
    found = torch.from_numpy(2 * stats.t.sf(t.abs().numpy(), units - 1))
    return found.where(spread.isfinite() & difference.isfinite(), torch.nan)


def all_pairs(
    values: Tensor,
    seed: int = 0,
    flips: int | None = None,
    confidence: float = 0.95,
    resamples: int = 2000,
    clusters: Tensor | None = None,
    summary: Summary | None = None,
) -> dict[tuple[int, int], Paired]:
    """Every pair of methods, each on the images that both have: a method with few images weakens its own pairs alone.

    Args:
        values: Per image and method, (n, M), or numbers (n, M, J) with a summary; NaN where an image does not count.
        seed: Of flips and resamples, the same for all pairs.
        flips: How many are drawn; None for 10 000, or more where there are over 200 pairs.
        confidence: Of the intervals.
        resamples: Of the bootstrap.
        clusters: Group of each image, (n,): groups are drawn and flipped as a whole.
        summary: From numbers (..., n, J) to outputs (..., O), of which the first is compared, where the value of a data
            set is no mean over images. There are no differences of single images then, so that their effect sizes and
            Wilcoxon's p are NaN.

    Returns:
        By numbers of two methods, the smaller first; without a common image, all but the counts is NaN.
    """
    tested = pair_tests(values, seed, flips, clusters, summary)[0]
    there, table = present(values, summary), values.detach().double().cpu()
    groups = None if clusters is None else torch.as_tensor(clusters).cpu()
    rest = torch.full((5, len(tested.n)), torch.nan, dtype=table.dtype)  # low, high, wilcoxon, effect, superiority
    for images, pairs in _alike(there[:, tested.first] & there[:, tested.second]):
        own = None if groups is None else groups[images]
        used, place = torch.unique(torch.stack([tested.first[pairs], tested.second[pairs]]), return_inverse=True)
        part = table[images][:, used]

        def differences(rows: Tensor, methods: int = len(used), place: Tensor = place) -> Tensor:
            rows = rows.view(*rows.shape[:-1], methods, -1)
            totals = rows.mean(-3)[..., 0] if summary is None else summary(rows.movedim(-2, -3))[..., 0]
            return totals[..., place[0]] - totals[..., place[1]]

        ends = bootstrap(part.flatten(1), differences, resamples, confidence, seed, clusters=own)
        rest[:2, pairs] = torch.stack([ends.low, ends.high])
        if summary is None:
            rest[2:, pairs] = _of_images(part[:, place[0]] - part[:, place[1]], own)
    columns = torch.stack([tested.difference, rest[0], rest[1], tested.p, tested.adjusted, *rest[2:]], 1)
    keys = zip(tested.first.tolist(), tested.second.tolist(), strict=True)
    return {
        key: Paired(**dict(zip(_NUMBERS, row, strict=True)), n=n, seed=seed, flips=tested.flips, resamples=resamples)
        for key, row, n in zip(keys, columns.tolist(), tested.n.tolist(), strict=True)
    }


def _alike(both: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Images, bool (n,), and the pairs that have these in common, of bool (n, P); in most tables all have the same."""
    if not bool(both.any()):
        return
    masks, kind = torch.unique(both, dim=1, return_inverse=True)
    for k, images in enumerate(masks.unbind(1)):
        if bool(images.any()):
            yield images, (kind == k).nonzero()[:, 0]


def _sums(d: Tensor, groups: Tensor | None) -> Tensor:
    """Sums of differences (n, P) over groups, (G, P)."""
    if groups is None:
        return d
    number = torch.unique(groups, return_inverse=True)[1]
    return d.new_zeros(int(number.max()) + 1, d.shape[1]).index_add(0, number, d)


def _of_images(d: Tensor, groups: Tensor | None) -> Tensor:
    """Of differences (n, P): p of Wilcoxon, effect size, and share of images where the first is higher, (3, P)."""
    means = d if groups is None else _sums(d, groups) / torch.unique(groups, return_counts=True)[1][:, None]
    wilcoxon = [float(stats.wilcoxon(one.numpy()).pvalue) if bool(one.any()) else _NAN for one in means.unbind(1)]
    mean = d.mean(0)
    spread = d.std(0) if len(d) > 1 else torch.zeros_like(mean)
    spread = torch.where(spread <= 1e-12 * mean.abs(), 0.0, spread)  # rounding is no spread
    effect = torch.where(mean == 0, 0.0, mean / spread)
    higher = (d > 0).double().mean(0) + (d == 0).double().mean(0) / 2
    return torch.stack([torch.tensor(wilcoxon, dtype=d.dtype), effect, higher])


def paired(
    first: Tensor,
    second: Tensor,
    seed: int = 0,
    flips: int | None = None,
    confidence: float = 0.95,
    resamples: int = 2000,
    clusters: Tensor | None = None,
) -> Paired:
    """Compare values (n,) of two methods on the same images; an image without a value of either does not count."""
    if first.shape != second.shape or first.dim() != 1:
        raise ArgumentError(
            f"Expected values (n,) of the same images, but got {tuple(first.shape)} and {tuple(second.shape)}."
        )
    both = torch.stack([first.double().cpu(), second.double().cpu()], 1)
    return all_pairs(both, seed, flips, confidence, resamples, clusters)[0, 1]


def present(values: Tensor, summary: Summary | None = None) -> Tensor:
    """Whether an image counts for a method, bool (n, M), of values (n, M), or (n, M, J) with a summary."""
    if values.dim() != (2 if summary is None else 3) or not values.shape[1]:
        wanted = "(n, M)" if summary is None else "(n, M, J)"
        raise ArgumentError(f"Expected values per image and method, {wanted}, but got shape {tuple(values.shape)}.")
    finite = values.detach().cpu().isfinite()
    return finite if summary is None else finite.all(2)


@dataclass(frozen=True)
class Marks:
    """Who is printed as the best of a table.

    Attributes:
        marked: Of each method: whether it has values, and no other is shown to be better (corrected p below the level).
        best: Of these, the one that is ahead of the most others; with the same images for all, the best mean. None
            without images.
        clear: Whether it is shown to be better than every other.
        adjusted: Corrected p against the best; NaN for itself, and without common images.
        images: The fewest and the most images of a test; None where no two methods have values.
        level: Of significance.
    """

    marked: tuple[bool, ...]
    best: int | None
    clear: bool
    adjusted: tuple[float, ...]
    images: tuple[int, int] | None
    level: float


def marks(
    values: Tensor,
    higher: bool = True,
    level: float = 0.05,
    seed: int = 0,
    clusters: Tensor | None = None,
    summary: Summary | None = None,
) -> Marks:
    """Who is marked in a column of a table.

    Args:
        values: Per image and method, (n, M), or (n, M, J) with a summary; NaN where an image does not count.
        higher: Whether higher is better.
        level: Of significance.
        seed: Of the tests.
        clusters: As for `mhex.stats.comparison.all_pairs`.
        summary: As for `all_pairs`.
    """
    return marked(pair_tests(values, seed, clusters=clusters, summary=summary)[0], higher, level)


def marked(tested: PairTests, higher: bool = True, level: float = 0.05) -> Marks:
    """Who is marked, by tests that were made.

    A method is out as soon as any other is shown to be better on the images that both have. Nobody is measured by the
    mean over its own images, which may be the easy ones or the hard ones; nor by one method alone, since a method with
    a few lucky images would be ahead, nothing would be shown to be worse than it, and all would be marked. With the
    same images for all, the best mean is never out, and it is left alone where it is better than every other: of
    three methods, the last is told from the first at least as well as the less clear of the two steps between them.
    """
    methods, alive = len(tested.counts), tested.counts > 0
    gain = torch.zeros(methods, methods, dtype=torch.float64)
    adjusted = torch.full_like(gain, torch.nan)
    for side, other, sign in ((tested.first, tested.second, 1), (tested.second, tested.first, -1)):
        gain[side, other] = tested.difference.double().nan_to_num() * (sign if higher else -sign)
        adjusted[side, other] = tested.adjusted.double()
    left = alive & ~((gain < 0) & (adjusted < level)).any(1)
    if not bool(alive.any()):
        return Marks((False,) * methods, None, False, (float("nan"),) * methods, None, level)
    # In circles, each better than the next on other images, all are out.
    best = int(gain.sign().sum(1).masked_fill(~(left if bool(left.any()) else alive), -torch.inf).argmax())
    against, others = adjusted[best], alive.clone()
    others[best] = False
    clear = bool(((gain[best] > 0) & (against < level))[others].all())
    sizes = tested.n[alive[tested.first] & alive[tested.second]].tolist()
    images = (min(sizes), max(sizes)) if sizes else None
    return Marks(tuple(left.tolist()), best, clear, tuple(against.tolist()), images, level)
