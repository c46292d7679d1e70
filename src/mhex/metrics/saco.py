"""SaCo: do more salient groups of pixels matter more, in proportion to how much more salient they are?"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mhex._settings import check_that
from mhex.capture import Batch
from mhex.metrics import PerImage, Protocol, register_metric
from mhex.metrics.protocols import Scored, check_units
from mhex.perturb import PassResult, PerturbationSweep, Runner, Subject, Units, column_of, counts


@dataclass(frozen=True)
class GroupResult(PassResult):
    """Importance of each group, and what goes with it.

    Importance is the mean score of the units of each group, the most important group first, above that of the least
    important unit; NaN for a group without a unit. What goes is `p_c(x) - p_c(x without the group)` of the explained
    class, the predicted one and the label; NaN where there is none.
    """

    importance: Tensor  # (B, K)
    drop: Tensor  # (B, K, 3)

    def of(self, scored: str) -> Tensor:
        """What goes with each group, of one class, (B, K)."""
        defined = ~self.drop.isnan() | self.importance.isnan()[..., None]
        return self.drop[..., column_of(scored, defined.all(1))]


@dataclass(frozen=True)
class GroupProtocol(Protocol, Runner[GroupResult]):
    """How units are grouped and hidden; parts are as for `PerturbationSweep`, but for the groups and the class."""

    blur_parts = ("sigma",)
    reference: str = "mean"
    groups: int = 10  # K, of equal size, or as near to it as whole numbers allow
    scored: Scored = "predicted"
    granularity: str = "pixel"
    tie: str = "random"
    seed: int = 0
    sigma: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_that(self.groups >= 2, "at least 2 groups", self.groups)
        _ = self.sweep  # making it refuses what it cannot do
        check_units(self.reference, self.granularity)

    @property
    def sweep(self) -> PerturbationSweep:
        """The sweep that removes units in the same way."""
        parts = {name: getattr(self, name) for name in ("reference", "granularity", "tie", "seed", "sigma")}
        return PerturbationSweep(steps=self.groups, **parts)

    def ask(self, subject: Subject, saliency: Tensor, explained: Tensor | None = None) -> GroupResult:
        """Hide each group and ask; arguments as for `PerturbationSweep`."""
        removal = self.sweep.ranked(subject, saliency)
        ends = counts(removal.units.number, self.groups)  # (B, K + 1)
        group = torch.searchsorted(ends[:, 1:].contiguous(), removal.rank, right=True)  # K at what is never removed
        classes = subject.classes(explained)[:, :3]

        def change(samples: Tensor, number: Tensor) -> Batch:
            return removal.change(group[samples] == number[:, None], samples)

        def read(logits: Tensor, samples: Tensor) -> Tensor:
            return subject.probabilities(logits, classes[samples])

        after = subject.answers(self.groups, change, read, "groups")
        drop = subject.probabilities(subject.logits, classes)[:, None] - after
        importance = _means(removal.units, group, self.groups)
        drop = drop.masked_fill(importance.isnan()[..., None], torch.nan)
        return GroupResult(tuple(subject.ids), importance, drop, runner=self)


def _means(units: Units, group: Tensor, groups: int) -> Tensor:
    """Mean score of the units of each group, (B, K)."""
    # Not the sum: groups may differ by a unit, and a sum would then depend on the offset of the map. The lowest score
    # is taken off for the same reason: a constant map has groups of exactly 0.
    scores = units.scores.double()
    if units.counted is not None:
        scores = scores.masked_fill(~units.counted, torch.inf)
    scores = (scores - scores.amin(1, keepdim=True)).nan_to_num(0.0, posinf=0.0)
    total = scores.new_zeros(len(scores), groups + 1).scatter_add(1, group, scores)
    number = scores.new_zeros(len(scores), groups + 1).scatter_add(1, group, torch.ones_like(scores))
    return (total / number)[:, :groups]


def saco(result: GroupResult, scored: str = "predicted") -> Tensor:
    """`F = sum_{i<j} sgn_ij (s_i - s_j) / sum_{i<j} |s_i - s_j|`, from -1 to 1, (B,); 0 where all `s` are equal, NaN
    without a unit.

    `s_i` is the importance of group `i`, and `sgn_ij` is 1 if the model loses at least as much with group `i` as with
    group `j`, else -1.

    Args:
        result: Result of groups hidden one at a time.
        scored: Whose probability is read.
    """
    s, d = result.importance, result.of(scored)
    gap = (s[:, :, None] - s[:, None]).triu(1).nan_to_num(0.0)  # a group without a unit has no part
    sign = torch.where(d[:, :, None] >= d[:, None], 1.0, -1.0)
    size = gap.abs().sum((1, 2))
    value = torch.where(size > 0, (sign * gap).sum((1, 2)) / size, 0.0)
    return value.masked_fill(s.isnan().all(1), torch.nan)


@register_metric(
    "saco",
    function=saco,
    title="Do more salient groups of pixels matter more, in proportion to how much more salient they are?",
    paper="Wu et al., Salience-guided faithfulness coefficient, CVPR 2024, arXiv:2404.01415",
    passes="K F",
    traps="Public code leaves groups and perturbation open: ten groups and the mean colour are our reading. Looks at "
    "values, not ranks alone: a gamma changes it, an offset or a factor does not. A constant map scores 0 and counts "
    "as `flat`.",
    presets={"default": GroupProtocol(), "text": GroupProtocol("mask_token", granularity="token")},
)
class SaCo(PerImage):
    """Salience-guided faithfulness (higher is better), and the share of constant maps."""

    columns = ("value", "flat")
    better = (True, None)

    def score(self, result: GroupResult) -> Tensor:
        most, least = (result.importance.nan_to_num(empty) for empty in (-torch.inf, torch.inf))
        return torch.stack([super().score(result), (most.amax(1) <= least.amin(1)).double()], 1)
