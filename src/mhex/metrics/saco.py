"""SaCo: do more salient groups of pixels matter more, in proportion to how much more salient they are?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mhex.metrics._base import PerImage
from mhex.metrics.case import Case
from mhex.metrics.protocols import Protocol, blur_only, check_units
from mhex.metrics.registry import register_metric
from mhex.perturb import GroupPass, GroupResult


@dataclass(frozen=True)
class GroupProtocol(Protocol):
    """Of metrics of groups hidden one at a time.

    Attributes:
        reference: What hidden means.
        groups: K.
        scored: Whose probability is read: the `"explained"` class's, the `"predicted"` one's or the `"label"`'s.
        granularity: What is ranked: `"pixel"`, `"patch"`, `"token"` or `"word"`.
        tie: How equal scores are ranked.
        seed: Of ties.
        sigma: Of the blur.
    """

    reference: str = "mean"
    groups: int = 10
    scored: str = "predicted"
    granularity: str = "pixel"
    tie: str = "random"
    seed: int = 0
    sigma: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_units(self.reference, self.granularity)

    @property
    def idle(self) -> dict[str, str]:
        return blur_only(self.reference, "sigma")

    @property
    def passes(self) -> tuple[Any, ...]:
        return (self.runner,)

    @property
    def runner(self) -> GroupPass:
        """The passes that it needs."""
        return GroupPass(self.reference, self.groups, self.granularity, self.tie, self.seed, self.sigma)  # type: ignore[arg-type]


def saco(result: GroupResult, scored: str = "predicted") -> Tensor:
    """`F = sum_{i<j} sgn_ij (s_i - s_j) / sum_{i<j} |s_i - s_j|`, from -1 to 1, (B,); 0 where all `s` are equal.

    `s_i` is the importance of group `i`, and `sgn_ij` is 1 if the model loses at least as much with group `i` as with
    group `j`, else -1.

    Args:
        result: Of groups hidden one at a time.
        scored: Whose probability is read.
    """
    s, d = result.importance, result.of(scored)
    gap = (s[:, :, None] - s[:, None]).triu(1).nan_to_num(0.0)  # a group without a unit has no part
    sign = torch.where(d[:, :, None] >= d[:, None], 1.0, -1.0)
    size = gap.abs().sum((1, 2))
    return torch.where(size > 0, (sign * gap).sum((1, 2)) / size, 0.0)


@register_metric(
    "saco",
    function=saco,
    title="Do more salient groups of pixels matter more, in proportion to how much more salient they are?",
    paper="Wu et al., Salience-guided faithfulness coefficient, CVPR 2024, arXiv:2404.01415",
    passes="K F",
    traps="Public code leaves groups and perturbation open: ten groups and the mean colour are our reading. Looks at "
    "values, not ranks alone: a gamma changes it, an offset or a factor does not. A constant map scores 0 and counts "
    "as `flat`.",
    presets={
        "default": GroupProtocol(),
        "text": GroupProtocol("mask_token", granularity="token"),
    },
)
class SaCo(PerImage):
    """Salience-guided faithfulness (higher is better), and the share of constant maps."""

    columns = ("value", "flat")
    outputs = ("value", "flat")
    better = (True, None)
    protocol: GroupProtocol

    def of(self, case: Case) -> tuple[Any, ...]:
        """The groups of the map."""
        return (case.passes(self.protocol.runner),)

    def score(self, result: GroupResult) -> Tensor:
        """Per image."""
        s = result.importance.nan_to_num(-torch.inf)
        least = result.importance.nan_to_num(torch.inf)
        return torch.stack([saco(result, self.protocol.scored), (s.amax(1) <= least.amin(1)).double()], 1)
