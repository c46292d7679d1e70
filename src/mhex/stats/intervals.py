"""Bootstrap intervals: images are drawn again, never pixels, boxes or steps."""

from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

import torch
from scipy import stats
from torch import Tensor

from mhex._settings import check_choice, check_kind, check_seed, check_that

Summary = Callable[[Tensor], Tensor]
IntervalKind = Literal["percentile", "bca"]
_CHUNK = 4_000_000  # numbers that a part of the resamples may hold
_NOTHING = 1e-200  # a sum of squares below it is none


class Interval(NamedTuple):
    """Where values of a data set lie: the ends, (O,) each."""

    low: Tensor
    high: Tensor


def bootstrap(
    rows: Tensor,
    summary: Summary,
    resamples: int = 2000,
    confidence: float = 0.95,
    seed: int = 0,
    kind: IntervalKind = "percentile",
) -> Interval:
    """Interval of a summary over images drawn with replacement.

    The summary is computed anew for each draw. Draws for which an output is not defined (NaN) are left out for it,
    which `scipy.stats.bootstrap` cannot do; and the draws depend on torch's generator alone. Rows are numbers per
    image, (n, J), of which the summary makes outputs (..., O). The kind is `"percentile"`; or `"bca"`, corrected for
    bias and for a spread that goes with the value, at the cost of a summary for each image.
    """
    check_interval(resamples, confidence, seed, kind)
    draws = resampled(rows, summary, resamples, seed)
    ends = torch.tensor([(1 - confidence) / 2, (1 + confidence) / 2], dtype=torch.float64)
    shares = ends[:, None].expand(-1, draws.shape[1])  # (2, O)
    if kind == "bca":
        shares = _corrected(shares, draws, rows.cpu(), summary)
    low, high = torch.stack([draws[:, k].nanquantile(shares[:, k].to(draws)) for k in range(draws.shape[1])], 1)
    return Interval(low, high)


def check_interval(resamples: object, confidence: object, seed: object, kind: object) -> None:
    """Refuse settings that no interval can be made with; arguments as for `bootstrap`."""
    check_kind("resamples", resamples, (int,))
    check_kind("confidence", confidence, (float,))
    check_seed("bootstrap_seed", seed)
    check_kind("interval", kind, (str,))
    check_that(0 < confidence < 1, "confidence between 0 and 1", confidence)  # type: ignore[operator]
    check_choice("the kind of interval", kind, get_args(IntervalKind))


def interval_of(
    rows: Tensor,
    summary: Summary,
    resamples: int = 2000,
    confidence: float = 0.95,
    seed: int = 0,
    kind: IntervalKind = "percentile",
    hits: bool = False,
) -> Interval:
    """Interval of a metric's value: by `bootstrap`, except where it cannot say anything.

    Resamples of hits alone are hits alone, whatever their number, so shares of hits have the exact interval of Clopper
    and Pearson. One image says nothing about others: its interval is NaN.

    Other arguments are those of `bootstrap`; `hits` says whether the numbers, (n, 1), are 1 for a hit and 0 for a miss.
    """
    if hits and len(rows):
        n, k = len(rows), float(rows.sum())
        ends = stats.beta.ppf([(1 - confidence) / 2, (1 + confidence) / 2], [k, k + 1], [n - k + 1, n - k])
        low, high = (0.0 if k == 0 else ends[0]), (1.0 if k == n else ends[1])
        return Interval(torch.tensor([low]).double(), torch.tensor([high]).double())
    interval = bootstrap(rows, summary, resamples, confidence, seed, kind)
    return interval if len(rows) > 1 else Interval(*(torch.full_like(end, torch.nan) for end in interval))


def resampled(rows: Tensor, summary: Summary, resamples: int = 2000, seed: int = 0) -> Tensor:
    """Outputs of a summary over images drawn with replacement, (resamples, O), on the CPU; see `bootstrap`."""
    right = rows.dim() == 2 and len(rows) > 0
    check_that(right, "numbers (n, J) of at least one image", f"shape {tuple(rows.shape)}")
    check_that(resamples >= 1, "at least one resample", resamples)
    rows, generator = rows.cpu(), torch.Generator().manual_seed(check_seed("seed", seed) % 2**63)
    part = max(1, _CHUNK // rows.numel())
    shapes = [(min(part, resamples - start), len(rows)) for start in range(0, resamples, part)]
    return torch.cat([summary(rows[torch.randint(len(rows), shape, generator=generator)]) for shape in shapes])


def _corrected(shares: Tensor, draws: Tensor, rows: Tensor, summary: Summary) -> Tensor:
    """Shares (2, O) of the draws at which the ends of a BCa interval lie."""
    value = summary(rows)
    size = (~draws.isnan()).sum(0)
    # Ties count half, so that a value that never changes has no bias.
    below = ((draws < value).sum(0) + (draws <= value).sum(0)).double() / (2 * size)
    least = 0.5 / size.clamp_min(1)
    # Without any draw that has a value, every share of them is as good.
    bias = torch.special.ndtri(below.nan_to_num(0.5).clamp(least, 1 - least))
    z = bias + torch.special.ndtri(shares)
    corrected: Tensor = torch.special.ndtr(bias + z / (1 - _acceleration(rows, summary) * z))
    return corrected


def _acceleration(rows: Tensor, summary: Summary) -> Tensor:
    """How fast the spread grows with the value, (O,), by the jackknife; 0 where nothing changes."""
    count = len(rows)
    if count == 1:
        return torch.zeros(1, dtype=torch.float64)
    part, number = max(1, _CHUNK // rows.numel()), torch.arange(count - 1)
    without = [number + (number >= image[:, None]) for image in torch.split(torch.arange(count), part)]
    outputs = torch.cat([summary(rows[images]) for images in without]).double()
    change = outputs.nanmean(0) - outputs
    cubes, squares = change.pow(3).nansum(0), change.square().nansum(0)
    return torch.where(squares > _NOTHING, cubes / (6 * squares.clamp_min(_NOTHING).pow(1.5)), 0.0)
