"""Groups of units, from the most to the least important, each hidden by itself."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mhex.capture import Batch
from mhex.errors import ArgumentError
from mhex.perturb.ranks import Tie, counts
from mhex.perturb.runner import Runner
from mhex.perturb.subject import Subject, column_of
from mhex.perturb.sweep import PerturbationSweep
from mhex.perturb.units import Units


@dataclass(frozen=True)
class GroupResult:
    """Importance of each group, and what goes with it.

    Attributes:
        ids: Number of each sample in its data set.
        importance: Mean score of the units of each group, the most important group first, above that of the least
            important unit; (B, K), NaN for a group without a unit.
        drop: `p_c(x) - p_c(x without the group)` of the explained class, the predicted one and the label, (B, K, 3);
            NaN where there is none.
        runner: How it was made; None where it is not known.
    """

    ids: tuple[int, ...]
    importance: Tensor
    drop: Tensor
    runner: GroupPass | None = None

    def of(self, scored: str) -> Tensor:
        """What goes with each group, of one class, (B, K)."""
        known = ~self.drop.isnan() | self.importance.isnan()[..., None]
        return self.drop[..., column_of(scored, known.all(1))]


@dataclass(frozen=True)
class GroupPass(Runner[GroupResult]):
    """How units are grouped and hidden.

    Attributes:
        reference: What hidden means; see `PerturbationSweep`.
        groups: K, of equal size, or as near to it as whole numbers allow.
        granularity: What is ranked.
        tie: How equal scores are ranked.
        seed: Of ties.
        sigma: Of the blur.
    """

    reference: str = "mean"
    groups: int = 10
    granularity: str = "pixel"
    tie: Tie = "random"
    seed: int = 0
    sigma: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.groups, int) or self.groups < 2:
            raise ArgumentError(f"Expected at least 2 groups, but got {self.groups!r}.")
        _ = self.sweep  # making it refuses what it cannot do

    @property
    def sweep(self) -> PerturbationSweep:
        """The sweep that removes units in the same way."""
        return PerturbationSweep(
            self.reference, self.granularity, self.groups, tie=self.tie, seed=self.seed, sigma=self.sigma
        )

    def ask(self, subject: Subject, saliency: Tensor, explained: Tensor | None = None) -> GroupResult:
        """Hide each group and ask; arguments as for `PerturbationSweep`."""
        removal = self.sweep.ranked(subject, saliency)
        ends = counts(removal.units.number, self.groups)  # (B, K + 1)
        group = torch.searchsorted(ends[:, 1:].contiguous(), removal.rank, right=True)  # K at what is never removed
        size = subject.batch.size
        classes = subject.classes(explained)[:, :3]
        before = subject.probabilities(subject.logits, classes)
        drop = before.new_empty(size, self.groups, 3)

        def make(jobs: Tensor) -> Batch:
            samples = jobs // self.groups
            return removal.change(group[samples] == (jobs % self.groups)[:, None], samples)

        for start, stop, logits in subject.run(size * self.groups, make, "groups"):
            jobs = torch.arange(start, stop, device=subject.device)
            samples = jobs // self.groups
            drop[samples, jobs % self.groups] = before[samples] - subject.probabilities(logits, classes[samples])
        importance = _means(removal.units, group, self.groups)
        drop = drop.masked_fill(importance.isnan()[..., None], torch.nan)
        return GroupResult(tuple(subject.ids), importance, drop, self)


def _means(units: Units, group: Tensor, groups: int) -> Tensor:
    """Mean score of the units of each group, (B, K).

    Not the sum: groups may differ by a unit, and a sum would then depend on the offset of the map. The lowest score is
    taken off for the same reason: a constant map has groups of exactly 0.
    """
    scores = units.scores.double()
    if units.counted is not None:
        scores = scores.masked_fill(~units.counted, torch.inf)
    scores = (scores - scores.amin(1, keepdim=True)).nan_to_num(0.0, posinf=0.0)
    total = scores.new_zeros(len(scores), groups + 1).scatter_add(1, group, scores)
    number = scores.new_zeros(len(scores), groups + 1).scatter_add(1, group, torch.ones_like(scores))
    return (total / number)[:, :groups]
