"""Curves: how many units are removed at each of their points, and the areas under them."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from mhex._settings import check_that
from mhex.perturb.units import generator_for

Grid = Literal["even", "random"]
STRATA = 8  # draws of each sample and order on a random grid, unless a protocol says otherwise
RANDOM_AREAS = ("unit", "percent")  # rules that a random grid estimates: others speak of points that it does not have
_LEVELS = 7  # purpose of random numbers


def counts(units: Tensor, steps: int) -> Tensor:
    """How many of N units (...) are removed at each of the steps 0 to T, (..., T + 1).

    `floor(N k / T)` up to the middle, and the same counted from the end beyond it, so that the grid is symmetric:
    inserting is removing read backwards.
    """
    k = torch.arange(steps + 1, device=units.device)
    n = units[..., None]
    return torch.where(2 * k <= steps, n * k // steps, n - n * (steps - k) // steps)


def random_counts(units: Tensor, strata: int, seed: int, ids: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Counts on a random grid, and what each point weighs in the area under a curve: both (B, m + 2).

    One level `q = u^2` is drawn in each of m strata, `u = (k + xi) / m`: levels lie closer where the most important
    units go, and curves are steep. As many units as `floor(N q + xi')` are removed there, so that the mean over draws
    is that of the curve at q itself. Before and after these points stand nothing and everything removed. The area
    `int f(q) dq = int f(u^2) 2 u du` is estimated by `1/m sum 2 u f`, less `f(1) (1/m sum 2 u - 1)`, which is 0 on
    average and makes constant curves exact. So weights sum to 1. Where the least important units go first, counts and
    weights are read from the other end: levels are `1 - u^2`, and `f(0)`, nothing removed, stands for `f(1)`.

    `units` are N of each sample, (B,). `xi` and `xi'` depend on the seed and on the id of each sample in its data set
    alone: they are the same for all maps.
    """
    draws = [torch.rand(2, strata, generator=generator_for(seed, i, _LEVELS), dtype=torch.float64) for i in ids]
    xi, rounding = torch.stack(draws).to(units.device).unbind(1)
    u = (torch.arange(strata, device=units.device) + xi) / strata
    n = (units[:, None] * u.square() + rounding).floor().long()
    weights = 2 * u / strata
    nothing = torch.zeros_like(n[:, :1])
    rest = 1 - weights.sum(1, keepdim=True)
    return torch.cat([nothing, n, units[:, None]], 1), torch.cat([nothing.to(rest), weights, rest], 1)


def shares(steps: int, grid: Grid = "even") -> Tensor:
    """Share of the units that is removed at each point of a curve, float64; on a random grid its mean over draws."""
    if grid == "even":
        return torch.linspace(0, 1, steps + 1, dtype=torch.float64)
    k = torch.arange(steps, dtype=torch.float64)
    return torch.cat([torch.zeros(1).double(), (k * k + k + 1 / 3) / steps**2, torch.ones(1).double()])


def area(curve: Tensor, rule: str = "unit", weights: Tensor | None = None) -> Tensor:
    """Area under curves (B, T + 1) whose points lie evenly from nothing to all removed, (B,).

    Args:
        curve: Values.
        rule: `"unit"`: trapezoids over 0 to 1. `"che"`: trapezoids over the points 0, 0.1 ... 0.9, times 100.
            `"percent"`: trapezoids over 0 to 100. `"left100"`: mean of all points but the last. `"mean11"`: mean of the
            points 0, 0.1 ... 1.
        weights: What each point weighs, of the same shape, in place of trapezoids; of the rules `"unit"` and
            `"percent"`.
    """
    steps = curve.shape[1] - 1
    if weights is not None:
        check_that(rule in RANDOM_AREAS, f"area {' or '.join(map(repr, RANDOM_AREAS))} on a random grid", repr(rule))
    if rule in ("unit", "percent"):
        unit = torch.trapezoid(curve, dx=1 / steps, dim=1) if weights is None else (curve * weights).sum(1)
        return unit * (100 if rule == "percent" else 1)
    if rule == "left100":
        return curve[:, :-1].mean(1)
    check_that(rule in ("che", "mean11"), "area 'unit', 'che', 'percent', 'left100' or 'mean11'", repr(rule))
    check_that(steps % 10 == 0, f"a multiple of 10 steps for the area {rule!r}", steps)
    tenths = curve[:, :: steps // 10]
    return tenths.mean(1) if rule == "mean11" else torch.trapezoid(tenths[:, :-1], dx=10.0, dim=1)
