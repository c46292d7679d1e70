"""Correlations of rows, by values and by ranks."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, permutations
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy import special
from torch import Tensor

from mhex._settings import check_that

Values = Tensor | Sequence[float] | NDArray[Any]
_EVERY_ORDER = 9  # so many values are put in every order
_NO_SPREAD = 1e-13  # beside the size of the values: what rounding leaves of a constant


def linear_correlation(x: Tensor, y: Tensor) -> Tensor:
    """Pearson's coefficient of rows (..., n) and (..., n), float64; NaN where a row is constant or empty."""
    if not x.shape[-1]:
        return torch.full(x.shape[:-1], torch.nan, dtype=torch.float64, device=x.device)
    return (_unit(x) * _unit(y)).sum(-1).clamp(-1, 1)


def _unit(x: Tensor) -> Tensor:
    """Rows less their mean, of length 1; NaN where they differ by no more than rounding."""
    side = x.double()
    scale = side.abs().amax(-1, keepdim=True)
    side = side / torch.where(scale > 0, scale, 1.0)  # so that no square is too large or too small
    off = side - side.mean(-1, keepdim=True)
    length = torch.linalg.vector_norm(off, dim=-1, keepdim=True)
    varied = length > _NO_SPREAD * torch.linalg.vector_norm(side, dim=-1, keepdim=True)
    return torch.where(varied, off / length, torch.nan)


def rank_correlation(first: Tensor, second: Tensor) -> Tensor:
    """Spearman's rho of rows (..., n) and (..., n), ties sharing a rank; NaN where a row is constant or empty."""
    return linear_correlation(mean_ranks(first), mean_ranks(second))


def rank_correlation_p(first: Tensor, second: Tensor) -> float:
    """Two-sided p of Spearman's rho of values (n,) and (n,): the share of orders of one with a rho as far from 0.

    Exact over all orders of up to nine values; beyond, by Student's t with n - 2 degrees of freedom. NaN where rho is.
    """
    rho, n = float(rank_correlation(first, second)), len(first)
    if math.isnan(rho):
        return rho
    if n > _EVERY_ORDER:
        return float(special.betainc((n - 2) / 2, 0.5, (1 - rho) * (1 + rho)))
    x, y = (mean_ranks(values) - (n - 1) / 2 for values in (first, second))
    # Sums of products of ranks are in the order of rho, and equal ones may differ in their last digits.
    return float(((x[_orders(n)] @ y).abs() >= (x @ y).abs() - 1e-9).double().mean())


@cache
def _orders(n: int) -> Tensor:
    """All orders of n places, (n!, n)."""
    places = np.fromiter(chain.from_iterable(permutations(range(n))), dtype=np.int64, count=n * math.factorial(n))
    return torch.from_numpy(places.reshape(-1, n))


def mean_ranks(values: Tensor) -> Tensor:
    """Ranks of the values of rows (..., n), from 0 on, equal ones with the mean of their ranks; float64."""
    if not values.numel():
        return torch.zeros_like(values, dtype=torch.float64)
    rows = values.reshape(-1, values.shape[-1])
    ordered, order = rows.sort(dim=1)
    group = F.pad((ordered[:, 1:] != ordered[:, :-1]).long().cumsum(1), (1, 0))  # numbers of runs of equal values
    places = torch.arange(rows.shape[1], dtype=torch.float64, device=rows.device).expand(rows.shape)
    zeros = torch.zeros_like(places)
    total, number = (zeros.scatter_add(1, group, terms) for terms in (places, torch.ones_like(places)))
    mean = (total / number.clamp_min(1)).gather(1, group)
    return zeros.scatter(1, order, mean).view(values.shape)


@dataclass(frozen=True)
class Correlation:
    """Pearson's coefficient of two variables."""

    first: str  # name of one variable
    second: str  # name of the other
    coefficient: float  # r, from -1 to 1; NaN for fewer than three samples or if a variable does not vary
    p_value: float  # two-sided, of the hypothesis that there is no correlation, by Student's t with N - 2 degrees
    count: int  # N
    low: float  # lower end of the confidence interval (Fisher's z); -1 for three samples, of which it has no bound
    high: float
    level: float = 0.95  # confidence of the interval

    @property
    def squared(self) -> float:
        """The share of one variable's variance that a line through the other explains."""
        return self.coefficient**2


def correlate(x: Values, y: Values, level: float, names: tuple[str, str]) -> tuple[Correlation, str | None]:
    """Pearson's correlation of values (N,) and (N,), and why there is none, in words; None if there is one."""
    check_that(0 < level < 1, "a level between 0 and 1, for instance 0.95", level)
    a, b = _column(x, names[0]), _column(y, names[1])
    check_that(len(a) == len(b), f"as many values of {names[1]} as of {names[0]}, {len(a)}", len(b))
    n = len(a)
    r = linear_correlation(a, b) if n >= 3 else torch.tensor(torch.nan, dtype=torch.float64)
    # Student's t with n - 2 degrees, by the unexplained variance; p may be too small for a number, and is 0 then.
    p = special.betainc(max(n - 2, 1) / 2, 0.5, float((1 - r) * (1 + r)))
    low, high = r * 0 - 1, r * 0 + 1  # NaN stays
    if n > 3:
        half = torch.special.ndtri(torch.tensor((1 + level) / 2, dtype=r.dtype)) / (n - 3) ** 0.5
        low, high = (r.atanh() - half).tanh(), (r.atanh() + half).tanh()
    row = Correlation(*names, float(r), float(p), n, float(low), float(high), level)
    if n < 3:
        return row, f"it takes three samples, and there are {n}"
    constant = [name for name, column in zip(names, (a, b), strict=True) if bool(_unit(column).isnan().any())]
    return row, f"{constant[0]} does not vary" if constant else None


def _column(values: Values, name: str) -> Tensor:
    array = values.detach().cpu().double() if isinstance(values, Tensor) else np.array(values, np.float64, order="C")
    column = torch.as_tensor(array)
    check_that(column.dim() == 1, f"one value of {name} per sample, (N,)", f"the shape {tuple(column.shape)}")
    wrong = int((~column.isfinite()).sum())
    check_that(not wrong, f"finite values of {name}", f"{wrong} of {len(column)} that are not")
    return column
