"""Does the cosine of gate and head say something about a sample? Correlations, with what they are worth."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import RandomSampler

from mhex._correlation import pearson as correlated
from mhex._correlation import varies
from mhex.errors import ArgumentError, ArgumentTypeError, MhexWarning
from mhex.heads.collaboration import Collaboration, collaboration
from mhex.heads.drawing import save_drawing

CONFIDENCE = "p_orig"
Values = Tensor | Sequence[float] | NDArray[Any]


@dataclass(frozen=True)
class Correlation:
    """Pearson's coefficient of two variables.

    Attributes:
        first: Name of one variable.
        second: Name of the other.
        coefficient: r, from -1 to 1; NaN for fewer than three samples or if a variable does not vary.
        p_value: Two-sided, of the hypothesis that there is no correlation, by Student's t with N - 2 degrees.
        count: N.
        low: Lower end of the confidence interval (Fisher's z); -1 for three samples, of which it has no bound.
        high: Upper end.
        level: Confidence of the interval.
    """

    first: str
    second: str
    coefficient: float
    p_value: float
    count: int
    low: float
    high: float
    level: float = 0.95

    @property
    def squared(self) -> float:
        """The share of one variable's variance that a line through the other explains."""
        return self.coefficient**2


@dataclass(frozen=True, eq=False)
class Study:
    """Correlations over a data set.

    Attributes:
        rows: Of each block's cosine with each variable, then of each variable with the confidence `p_orig`.
        collaboration: The cosines.
    """

    rows: tuple[Correlation, ...]
    collaboration: Collaboration

    def __repr__(self) -> str:
        return f"Study({len(self.rows)} correlations of {len(self.collaboration)} samples)"

    def table(self) -> str:
        """The rows as a Markdown table."""
        percent = f"{100 * self.rows[0].level:g} %"
        head = f"| of | with | r | {percent} interval | r² | p-value | N |\n|---|---|---|---|---|---|---|"
        return "\n".join([head, *(_line(row) for row in self.rows)])

    def show(self) -> Any:
        """Draw each block's coefficients with their intervals as a matplotlib figure; notebooks display it."""
        from mhex.viz import forest_figure

        own = [row for row in self.rows if row.first in self.collaboration.blocks]
        note = (
            f"Pearson's r over {own[0].count} samples with {100 * own[0].level:g} % intervals (Fisher's z), not "
            f"corrected for their number, {len(own)}."
        )
        return forest_figure([(r.first, r.second, r.coefficient, r.low, r.high) for r in own], note)

    def save(self, path: str | PathLike[str]) -> Path:
        """Draw into a file; its suffix (`.png`, `.jpg`, `.pdf`, `.svg`, `.webp`) says how. Folders are made."""
        return save_drawing(self.show, path)


def pearson(x: Values, y: Values, level: float = 0.95, names: tuple[str, str] = ("x", "y")) -> Correlation:
    """Pearson's correlation with its p-value and confidence interval.

    For fewer than three values, or where one variable does not vary, there is none: NaN, and a warning.

    Args:
        x: One value per sample, (N,).
        y: Another, (N,).
        level: Confidence of the interval, between 0 and 1.
        names: What the two are called.

    Example:
        >>> from mhex.heads import pearson
        >>> round(pearson([1.0, 2.0, 3.0, 4.0], [1.0, 3.0, 2.0, 4.0]).coefficient, 3)
        0.8
    """
    row, why = _correlated(x, y, level, names)
    if why is not None:
        warnings.warn(f"There is no correlation of {names[0]} and {names[1]}: {why}.", MhexWarning, stacklevel=2)
    return row


def _correlated(x: Values, y: Values, level: float, names: tuple[str, str]) -> tuple[Correlation, str | None]:
    """The correlation, and why there is none; None if there is one."""
    if not 0 < level < 1:
        raise ArgumentError(f"Expected a level between 0 and 1, for instance 0.95, but got {level}.")
    a, b = _column(x, names[0]), _column(y, names[1])
    if len(a) != len(b):
        raise ArgumentError(f"Expected as many values of {names[1]} as of {names[0]}, {len(a)}, but got {len(b)}.")
    still = [name for name, column in zip(names, (a, b), strict=True) if not varies(column)]
    if len(a) < 3 or still:
        nan = float("nan")
        why = f"{still[0]} does not vary" if len(a) >= 3 else f"it takes three samples, and there are {len(a)}"
        return Correlation(*names, nan, nan, len(a), nan, nan, level), why
    found = correlated(a, b)
    low, high = (float(end) for end in found.interval(level))
    return Correlation(*names, float(found.r), float(found.p), len(a), low, high, level), None


def study(seen: Collaboration, against: Mapping[str, Values] | None = None, level: float = 0.95) -> Study:
    """Correlations of each block's cosine with the confidence of the model and with values of the user's.

    Args:
        seen: From `Scaffold.collaboration`.
        against: Values (N,) by name, in the order of the samples: how much an explanation drops, for instance.
        level: Confidence of the intervals.
    """
    if against is not None and not isinstance(against, Mapping):
        raise ArgumentTypeError(
            f"Expected against= to give values (N,) a name, for instance {{'SAD': drops}}, but got "
            f"{type(against).__name__}."
        )
    own = dict(against or {})
    taken = {CONFIDENCE, *seen.blocks} & own.keys()
    if taken:
        raise ArgumentError(f"Expected other names in against= than {', '.join(sorted(taken))}, which are taken.")
    own = {CONFIDENCE: seen.p_orig, **own}
    cosines = {name: seen.cosine[:, number] for number, name in enumerate(seen.blocks)}
    found = [_correlated(c, v, level, (block, name)) for name, v in own.items() for block, c in cosines.items()]
    found += [_correlated(v, seen.p_orig, level, (name, CONFIDENCE)) for name, v in own.items() if name != CONFIDENCE]
    if reasons := dict.fromkeys(why for _, why in found if why is not None):
        missing = sum(why is not None for _, why in found)
        warnings.warn(
            f"{missing} of {len(found)} correlations do not exist and are NaN: {'; '.join(reasons)}.",
            MhexWarning,
            stacklevel=2,
        )
    return Study(tuple(row for row, _ in found), seen)


def collaboration_study(
    model: nn.Module,
    loader: Any,
    against: Mapping[str, Values] | None = None,
    level: float = 0.95,
    chunk: int = 32,
    progress: bool = False,
) -> Study:
    """See `Scaffold.collaboration_study`."""
    if against and isinstance(getattr(loader, "sampler", None), RandomSampler):
        raise ArgumentError(
            "The loader shuffles, so the values in against= would meet other samples than their own; use shuffle=False."
        )
    return study(collaboration(model, loader, None, chunk, progress), against, level)


def _column(values: Values, name: str) -> Tensor:
    given = values.detach().cpu().double() if isinstance(values, Tensor) else np.array(values, np.float64, order="C")
    column = torch.as_tensor(given)
    if column.dim() != 1:
        raise ArgumentError(f"Expected one value of {name} per sample, (N,), but got the shape {tuple(column.shape)}.")
    if wrong := int((~column.isfinite()).sum()):
        raise ArgumentError(f"Expected finite values of {name}, but {wrong} of {len(column)} are not.")
    return column


def _line(row: Correlation) -> str:
    chance = "< 0.0001" if row.p_value < 1e-4 else f"{row.p_value:.4f}"
    numbers = f"{row.coefficient:.3f} | {row.low:.3f} to {row.high:.3f} | {row.squared:.3f} | {chance} | {row.count}"
    return f"| {row.first} | {row.second} | {numbers} |"
