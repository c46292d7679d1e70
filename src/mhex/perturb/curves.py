"""What a sweep left behind: a few numbers per sample and step, and the curves and areas made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from mhex.errors import ArgumentError
from mhex.perturb.subject import column_of

if TYPE_CHECKING:
    from mhex.perturb.sweep import PerturbationSweep


Order = Literal["mif", "lif"]
ORDERS: tuple[Order, ...] = ("mif", "lif")


@dataclass(frozen=True)
class SweepResult:
    """Curves of a batch, over the steps 0 to T.

    Attributes:
        sweep: How they were made.
        classes: The explained class, the predicted one, the label and another one, (B, 4); -1 where there is none.
        ids: Number of each sample in its data set.
        removed: Units removed at each step, (B, T + 1).
        units: Units of each sample, (B,).
        z: Scores of these classes, (orders, B, T + 1, 4), float64.
        norm: What makes them log-probabilities, `log p = z - norm`, of the same shape.
        mean: Mean score of all classes, (orders, B, T + 1).
        top: The class with the highest score, (orders, B, T + 1).
        rest: Scores of all other classes together, `log(p / (1 - p)) = z - rest`, of the shape of the scores.
    """

    sweep: PerturbationSweep
    classes: Tensor
    ids: tuple[int, ...]
    removed: Tensor
    units: Tensor
    z: Tensor
    norm: Tensor
    mean: Tensor
    top: Tensor
    rest: Tensor

    @property
    def runner(self) -> PerturbationSweep:
        """How they were made."""
        return self.sweep

    @classmethod
    def joined(cls, results: Sequence[SweepResult]) -> SweepResult:
        """Curves of the same samples on the same grid, of one sweep made in parts: some orders each."""
        orders = tuple(order for one in results for order in one.sweep.orders)
        tables = [torch.cat(parts) for parts in zip(*(one._tables for one in results), strict=True)]
        return results[0]._read(replace(results[0].sweep, orders=orders), tables)

    def along(self, order: Order) -> SweepResult:
        """The curves of one order alone."""
        place = self._place(order)
        return self._read(replace(self.sweep, orders=(order,)), [table[place : place + 1] for table in self._tables])

    def every(self, stride: int) -> SweepResult:
        """The same on a coarser grid, of every so many steps."""
        if stride == 1:
            return self
        sweep = replace(self.sweep, steps=self.sweep.steps // stride)
        coarse = self._read(sweep, [table[:, :, ::stride] for table in self._tables])
        return replace(coarse, removed=self.removed[:, ::stride])

    def curve(self, order: str, output: str = "probability", scored: str = "explained") -> Tensor:
        """What is read along one order, (B, T + 1).

        Args:
            order: `"mif"` or `"lif"`.
            output: A `"probability"`, `"log-probability"` or `"log-odds"`, a `"logit"`, a `"centred-logit"`, less the
                mean of all, or a `"hit"`: whether the class is on top.
            scored: Whose.
        """
        place, column = self._place(order), column_of(scored, self.classes >= 0)
        missing = self.classes[:, column, None] < 0
        tables = (self.z, self.norm, self.rest)
        z, norm, rest = (table[place, ..., column].masked_fill(missing, torch.nan) for table in tables)
        if output == "hit":
            return (self.top[place] == self.classes[:, column, None]).double()
        if output == "centred-logit":
            return z - self.mean[place]
        curves = {
            "probability": lambda: (z - norm).exp(),
            "log-probability": lambda: z - norm,
            "log-odds": lambda: z - rest,
            "logit": lambda: z,
        }
        if output not in curves:
            raise ArgumentError(f"Expected output to be one of {', '.join((*curves, 'centred-logit', 'hit'))}.")
        return curves[output]()

    def inserted(self, output: str = "probability", scored: str = "explained") -> Tensor:
        """The same along insertion of the most important units into the reference: removal of the least, backwards."""
        return self.curve("lif", output, scored).flip(1)

    @property
    def _tables(self) -> tuple[Tensor, ...]:
        """What there is for each order."""
        return self.z, self.norm, self.mean, self.top, self.rest

    def _read(self, sweep: PerturbationSweep, tables: Sequence[Tensor]) -> SweepResult:
        """Other orders or steps of the same samples."""
        return SweepResult(sweep, self.classes, self.ids, self.removed, self.units, *tables)

    def _place(self, order: str) -> int:
        if order not in self.sweep.orders:
            raise ArgumentError(
                f"Expected one of the orders of the sweep, {', '.join(self.sweep.orders)}, but got {order!r}; make the "
                "sweep with it."
            )
        return self.sweep.orders.index(order)


def area(curve: Tensor, rule: str = "unit") -> Tensor:
    """Area under curves (B, T + 1) whose points lie evenly from nothing to all removed, (B,).

    Args:
        curve: Values.
        rule: `"unit"`: trapezoids over 0 to 1. `"che"`: trapezoids over the points 0, 0.1 ... 0.9, times 100.
            `"percent"`: trapezoids over 0 to 100. `"left100"`: mean of all points but the last. `"mean11"`: mean of the
            points 0, 0.1 ... 1.
    """
    steps = curve.shape[1] - 1
    if rule in ("unit", "percent"):
        return torch.trapezoid(curve, dx=1 / steps, dim=1) * (100 if rule == "percent" else 1)
    if rule == "left100":
        return curve[:, :-1].mean(1)
    if rule not in ("che", "mean11"):
        raise ArgumentError(f"Expected area 'unit', 'che', 'percent', 'left100' or 'mean11', but got {rule!r}.")
    if steps % 10:
        raise ArgumentError(f"Expected a multiple of 10 steps for the area {rule!r}, but got {steps}.")
    tenths = curve[:, :: steps // 10]
    return tenths.mean(1) if rule == "mean11" else torch.trapezoid(tenths[:, :-1], dx=10.0, dim=1)
