"""Groups of units, from the most to the least important, each hidden by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mhex.capture import Batch
from mhex.errors import ArgumentError
from mhex.perturb.ranks import Tie, counts, ranks
from mhex.perturb.subject import Subject
from mhex.perturb.sweep import PerturbationSweep
from mhex.perturb.units import Units

_SCORED = ("explained", "predicted", "label")


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
        if scored not in _SCORED:
            raise ArgumentError(f"Expected scored to be one of {', '.join(_SCORED)}, but got {scored!r}.")
        found = self.drop[..., _SCORED.index(scored)]
        if bool((found.isnan() & ~self.importance.isnan()).any()):
            raise ArgumentError("Expected labels for what is scored by them; give label=.")
        return found


@dataclass(frozen=True)
class GroupPass:
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

    @property
    def sweep(self) -> PerturbationSweep:
        """The sweep that removes units in the same way."""
        return PerturbationSweep(
            self.reference, self.granularity, self.groups, tie=self.tie, seed=self.seed, sigma=self.sigma
        )

    def __call__(
        self,
        model: nn.Module | Subject,
        x: Any,
        saliency: Tensor,
        explained: Tensor | None = None,
        label: Tensor | None = None,
        ids: Sequence[int] | None = None,
        **options: Any,
    ) -> GroupResult:
        """Hide each group and ask; arguments as for `PerturbationSweep`."""
        subject = model if isinstance(model, Subject) else Subject(model, x, label, ids, **options)
        sweep = self.sweep
        units = sweep.units(subject, saliency)
        rank = ranks(units.scores, subject.ids, self.seed, self.tie, units.counted)
        ends = counts(units.number, self.groups)  # (B, K + 1)
        group = torch.searchsorted(ends[:, 1:].contiguous(), rank, right=True)  # K at what is never removed
        change = sweep.change(subject, units)
        size = subject.batch.size
        classes = subject.classes(explained)[:, :3]
        before = _probabilities(subject, subject.logits, classes)
        drop = before.new_empty(size, self.groups, 3)

        def make(jobs: Tensor) -> Batch:
            samples = jobs // self.groups
            return change(group[samples] == (jobs % self.groups)[:, None], samples)

        for start, stop, logits in subject.run(size * self.groups, make, "groups"):
            jobs = torch.arange(start, stop, device=subject.device)
            samples = jobs // self.groups
            drop[samples, jobs % self.groups] = before[samples] - _probabilities(subject, logits, classes[samples])
        importance = _means(units, group, self.groups)
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


def _probabilities(subject: Subject, logits: Tensor, classes: Tensor) -> Tensor:
    z, norm = subject.read(logits, classes)
    return (z.double() - norm.double()).exp().masked_fill(classes < 0, torch.nan)
