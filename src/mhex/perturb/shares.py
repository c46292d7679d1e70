"""A few shares of the most important units: gone, and kept alone."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from mhex.errors import ArgumentError
from mhex.perturb.curves import SweepResult
from mhex.perturb.ranks import counts
from mhex.perturb.runner import Runner
from mhex.perturb.subject import Subject, column_of
from mhex.perturb.sweep import PerturbationSweep


@dataclass(frozen=True)
class ShareResult:
    """Probabilities of the explained class, the predicted one and the label; NaN where there is none.

    Attributes:
        ids: Number of each sample in its data set.
        before: Of the samples as they are, (B, 3).
        without: With each share removed, (B, K, 3); NaN where a sample has no unit at all.
        alone: With each share kept alone, of the same shape.
        runner: How it was made; None where it is not known.
    """

    ids: tuple[int, ...]
    before: Tensor
    without: Tensor
    alone: Tensor
    runner: SharePasses | None = None

    def of(self, scored: str) -> tuple[Tensor, Tensor, Tensor]:
        """All of one class: (B, 1), (B, K) and (B, K)."""
        column = column_of(scored, ~self.before.isnan())
        return self.before[:, None, column], self.without[..., column], self.alone[..., column]


@dataclass(frozen=True)
class SharePasses(Runner[ShareResult]):
    """Which shares, and how they are removed.

    At least one unit is removed, and at least one is kept. Counts are those of the sweep's grid, so that a sweep that
    was made for other metrics has all of the points: what is kept alone is what removal of the least important leaves.

    Attributes:
        sweep: How units are ranked and removed, with steps of one percent.
        percent: The shares, whole numbers from 1 to 99.
    """

    sweep: PerturbationSweep = field(default_factory=lambda: PerturbationSweep("drop", "word", 100))
    percent: tuple[int, ...] = (1, 5, 10, 20, 50)

    def __post_init__(self) -> None:
        if not self.percent or any(not isinstance(q, int) or not 0 < q < 100 for q in self.percent):
            raise ArgumentError(f"Expected shares in percent, whole numbers from 1 to 99, but got {self.percent!r}.")
        if self.sweep.steps != 100:
            raise ArgumentError(f"Expected a sweep of 100 steps, one for each percent, but got {self.sweep.steps}.")

    def ask(self, subject: Subject, saliency: Tensor, explained: Tensor | None = None) -> ShareResult:
        """Remove and ask; arguments as for `PerturbationSweep`."""
        removal = self.sweep.ranked(subject, saliency)
        units = removal.units.number
        gone, kept = self._numbers(counts(units, 100), units)
        classes = subject.classes(explained)[:, :3]
        number = torch.cat([gone, units[:, None] - kept], 1).mT
        last = torch.arange(2 * len(self.percent), device=subject.device) >= len(self.percent)
        found = removal.ask(number, last, lambda logits, own: (subject.probabilities(logits, classes[own]),))[0]
        table = found.view(2, len(self.percent), *found.shape[1:]).transpose(1, 2)
        table = table.masked_fill((units == 0).view(-1, 1, 1), torch.nan)
        before = subject.probabilities(subject.logits, classes)
        return ShareResult(tuple(subject.ids), before, table[0], table[1], self)

    def read(self, result: SweepResult) -> ShareResult:
        """The same off a sweep of 100 steps, without a pass."""
        gone, kept = self._numbers(result.removed, result.units)
        nothing = (result.units == 0).view(-1, 1, 1)
        probabilities = (result.z - result.norm).exp()[..., :3].masked_fill(result.classes[:, None, :3] < 0, torch.nan)
        tables = []
        for order, wanted in (("mif", gone), ("lif", result.units[:, None] - kept)):
            # The first step with so many removed: small samples have the same number at several steps.
            step = (result.removed[:, None] < wanted[..., None]).sum(-1)
            along = probabilities[result.sweep.orders.index(order)]
            found = along.gather(1, step[..., None].expand(-1, -1, 3))
            tables.append(found.masked_fill(nothing, torch.nan))
        made = replace(self, sweep=result.sweep)
        return ShareResult(result.ids, probabilities[0, :, 0], tables[0], tables[1], made)

    def _numbers(self, grid: Tensor, units: Tensor) -> tuple[Tensor, Tensor]:
        """How many units go, and how many are kept alone, each (B, K)."""
        shares = torch.tensor(self.percent, device=grid.device)
        bound = units[:, None]
        gone = torch.minimum(grid[:, shares].clamp_min(1), bound)
        return gone, torch.minimum((bound - grid[:, 100 - shares]).clamp_min(1), bound)
