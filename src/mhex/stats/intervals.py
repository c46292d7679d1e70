"""Intervals by drawing again: images, or whole groups of them, and never pixels, boxes or steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from scipy import stats
from torch import Tensor

from mhex.errors import ArgumentError
from mhex.metrics.protocols import check_kind

Summary = Callable[[Tensor], Tensor]
IntervalKind = Literal["percentile", "bca"]
_AT_A_TIME = 4_000_000  # numbers that a part of the resamples may hold
_NOTHING = 1e-200  # a sum of squares below it is none


@dataclass(frozen=True, eq=False)
class Interval:
    """Where values of a data set lie.

    Attributes:
        low, high: Ends, (O,).
        kind: `"percentile"` or `"bca"`.
        confidence: Share of data sets whose interval holds the value.
        resamples: How often images were drawn.
        seed: Of the draws.
    """

    low: Tensor
    high: Tensor
    kind: str
    confidence: float
    resamples: int
    seed: int

    @property
    def half_width(self) -> Tensor:
        """Half the distance of the ends, (O,), as printed after a plus-minus sign."""
        return (self.high - self.low) / 2

    def __str__(self) -> str:
        return f"{100 * self.confidence:g} % {self.kind} bootstrap, {self.resamples} resamples, seed {self.seed}"


def bootstrap(
    rows: Tensor,
    summary: Summary,
    resamples: int = 2000,
    confidence: float = 0.95,
    seed: int = 0,
    kind: IntervalKind = "percentile",
    clusters: Tensor | None = None,
) -> Interval:
    """Interval of a summary over images drawn with replacement.

    The summary is computed anew for each draw. Draws for which an output is not defined (NaN) are left out for it.

    Args:
        rows: Numbers per image, (n, J).
        summary: From numbers (..., n, J) to outputs (..., O).
        resamples: How often images are drawn.
        confidence: Of the interval.
        seed: Of the draws.
        kind: `"percentile"`; or `"bca"`, corrected for bias and for a spread that goes with the value, at the cost of a
            summary for each image.
        clusters: Group of each image, (n,), such as its mosaic or document: groups are drawn as a whole. None: each
            image is its own.
    """
    check_interval(resamples, confidence, seed, kind)
    found = resampled(rows, summary, resamples, seed, clusters)
    ends = torch.tensor([(1 - confidence) / 2, (1 + confidence) / 2], dtype=torch.float64)
    shares = ends[:, None].expand(-1, found.shape[1])  # (2, O)
    if kind == "bca":
        shares = _corrected(shares, found, rows.cpu(), summary, clusters)
    low, high = torch.stack(
        [found[:, k].nanquantile(shares[:, k].to(found)) for k in range(found.shape[1])], 1
    )  # (2, O)
    return Interval(low, high, kind, confidence, resamples, seed)


def check_interval(resamples: object, confidence: object, seed: object, kind: object) -> None:
    """Refuse what no interval can be made with; arguments as for `bootstrap`."""
    check_kind("resamples", resamples, (int,))
    check_kind("confidence", confidence, (float,))
    check_kind("bootstrap_seed", seed, (int,))
    check_kind("interval", kind, (str,))
    if not 0 < confidence < 1:  # type: ignore[operator]
        raise ArgumentError(f"Expected confidence between 0 and 1, but got {confidence!r}.")
    if kind not in ("percentile", "bca"):
        raise ArgumentError(f"Expected the kind of interval to be 'percentile' or 'bca', but got {kind!r}.")


def interval_of(
    rows: Tensor,
    summary: Summary,
    resamples: int = 2000,
    confidence: float = 0.95,
    seed: int = 0,
    kind: IntervalKind = "percentile",
    hits: bool = False,
) -> Interval:
    """Interval of a metric's value: by `bootstrap`, but for what it cannot tell.

    Of hits alone, resamples are hits alone, whatever their number: shares of hits have the exact interval of Clopper
    and Pearson. One image says nothing about others: NaN.

    Args:
        rows: Numbers per image, (n, J).
        summary: As for `bootstrap`.
        resamples: Of the bootstrap.
        confidence: Of the interval.
        seed: Of the bootstrap.
        kind: Of the bootstrap.
        hits: Whether the numbers, (n, 1), are 1 for a hit and 0 for a miss.
    """
    if hits and len(rows):
        n, k = len(rows), float(rows.sum())
        ends = stats.beta.ppf([(1 - confidence) / 2, (1 + confidence) / 2], [k, k + 1], [n - k + 1, n - k])
        low, high = (0.0 if k == 0 else ends[0]), (1.0 if k == n else ends[1])
        return Interval(torch.tensor([low]).double(), torch.tensor([high]).double(), "exact", confidence, 0, seed)
    found = bootstrap(rows, summary, resamples, confidence, seed, kind)
    if len(rows) > 1:
        return found
    nothing = torch.full_like(found.low, torch.nan)
    return replace(found, low=nothing, high=nothing)


def resampled(
    rows: Tensor, summary: Summary, resamples: int = 2000, seed: int = 0, clusters: Tensor | None = None
) -> Tensor:
    """Outputs of a summary over images drawn with replacement, (resamples, O), on the CPU; see `bootstrap`."""
    if rows.dim() != 2 or not len(rows):
        raise ArgumentError(f"Expected numbers (n, J) of at least one image, but got shape {tuple(rows.shape)}.")
    if resamples < 1:
        raise ArgumentError(f"Expected at least one resample, but got {resamples}.")
    rows, groups = rows.cpu(), _Groups.of(len(rows), clusters)
    draw = torch.Generator().manual_seed(seed % 2**63)
    part = max(1, _AT_A_TIME // rows.numel())
    found = []
    for start in range(0, resamples, part):
        shape = (min(part, resamples - start), groups.count)
        found.append(groups.summaries(rows, torch.randint(groups.count, shape, generator=draw), summary))
    return torch.cat(found)


@dataclass(frozen=True)
class _Groups:
    """Images sorted by group: `order` (n,), and where each group begins and how many it has, (G,)."""

    order: Tensor
    start: Tensor
    size: Tensor

    @classmethod
    def of(cls, images: int, clusters: Tensor | None) -> _Groups:
        if clusters is None:
            every = torch.arange(images)
            return cls(every, every, torch.ones_like(every))
        clusters = torch.as_tensor(clusters).cpu()
        if clusters.shape != (images,):
            raise ArgumentError(f"Expected a cluster for each of {images} images, but got {tuple(clusters.shape)}.")
        number, size = torch.unique(clusters, return_inverse=True, return_counts=True)[1:]
        return cls(number.argsort(stable=True), size.cumsum(0) - size, size)

    @property
    def count(self) -> int:
        return len(self.size)

    def summaries(self, rows: Tensor, drawn: Tensor, summary: Summary) -> Tensor:
        """Outputs (R, O) over the images of the drawn groups (R, D); draws with equally many images at once."""
        if len(self.order) == self.count:  # one image each: the order of groups is that of the images
            return summary(rows[self.order[drawn]])
        length = self.size[drawn].sum(1)
        found = torch.empty(0)
        for wanted in torch.unique(length).tolist():
            here = (length == wanted).nonzero()[:, 0]
            members = drawn[here].flatten()
            size = self.size[members]
            # Numbers 0, 1, ... inside each group, beside where the group begins.
            within = torch.arange(int(size.sum())) - (size.cumsum(0) - size).repeat_interleave(size)
            images = self.order[self.start[members].repeat_interleave(size) + within].view(len(here), wanted)
            outputs = summary(rows[images])
            if not len(found):
                found = outputs.new_empty(len(drawn), outputs.shape[-1])
            found[here] = outputs
        return found

    def left_out(self, rows: Tensor, summary: Summary) -> Tensor:
        """Outputs (G, O) without each group; there are two groups at least."""
        part = max(1, _AT_A_TIME // rows.numel())
        found = []
        for start in range(0, self.count, part):
            left = torch.arange(start, min(start + part, self.count))[:, None]
            others = torch.arange(self.count - 1)
            found.append(self.summaries(rows, others + (others >= left), summary))
        return torch.cat(found).double()


def _corrected(shares: Tensor, found: Tensor, rows: Tensor, summary: Summary, clusters: Tensor | None = None) -> Tensor:
    """Shares (2, O) of the draws at which the ends of a BCa interval lie."""
    value = summary(rows)
    counted = (~found.isnan()).sum(0)
    # Ties count half, so that a value that never changes has no bias.
    below = ((found < value).sum(0) + (found <= value).sum(0)).double() / (2 * counted)
    least = 0.5 / counted.clamp_min(1)
    # Without any draw that has a value, every share of them is as good.
    bias = torch.special.ndtri(below.nan_to_num(0.5).clamp(least, 1 - least))
    z = bias + torch.special.ndtri(shares)
    found_at: Tensor = torch.special.ndtr(bias + z / (1 - _acceleration(rows, summary, clusters) * z))
    return found_at


def _acceleration(rows: Tensor, summary: Summary, clusters: Tensor | None) -> Tensor:
    """How fast the spread grows with the value, (O,), from each image or group left out; 0 where nothing changes."""
    groups = _Groups.of(len(rows), clusters)
    if groups.count == 1:
        return torch.zeros(1, dtype=torch.float64)
    outputs = groups.left_out(rows, summary)
    change = outputs.nanmean(0) - outputs
    cubes, squares = change.pow(3).nansum(0), change.square().nansum(0)
    return torch.where(squares > _NOTHING, cubes / (6 * squares.clamp_min(_NOTHING).pow(1.5)), 0.0)
