"""Randomisation: does the map change when the model forgets what it learned, or another class is asked for?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mhex.errors import ArgumentError
from mhex.metrics._base import PerImage
from mhex.metrics.case import Case
from mhex.metrics.protocols import Protocol
from mhex.metrics.registry import register_metric
from mhex.perturb import RandomizedPass, RandomizedResult


@dataclass(frozen=True)
class RandomizationProtocol(Protocol):
    """Of the sanity checks.

    Attributes:
        mode: `"parameters"`, `"logit"` or `"labels"`; see `RandomizedPass`.
        sign: Whether `"signed"` maps are compared, or their `"absolute"` values.
        seed: Of new weights and classes.
        stages: Layers are renewed in so many parts; None for one layer at a time.
    """

    mode: str = "parameters"
    sign: str = "signed"
    seed: int = 0
    stages: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sign not in ("signed", "absolute"):
            raise ArgumentError(f"Expected sign 'signed' or 'absolute', but got {self.sign!r}.")

    @property
    def idle(self) -> dict[str, str]:
        weights = self.mode == "parameters"
        return {} if weights else {"stages": f"no layer is renewed, because mode is {self.mode!r}"}

    @property
    def passes(self) -> tuple[Any, ...]:
        return (self.runner,)

    @property
    def runner(self) -> RandomizedPass:
        """The passes that it needs."""
        return RandomizedPass(self.mode, self.seed, self.stages)


def randomization(result: RandomizedResult, sign: str = "signed") -> Tensor:
    """`rho_l = Spearman(S, S_l)` for each depth, (B, L): NaN where a map is constant.

    What the input alone would give is in `result.baseline`.

    Args:
        result: Of maps after randomisation.
        sign: Whether `"signed"` maps are compared, or their `"absolute"` values.
    """
    return result.of(sign)[0]


@register_metric(
    "randomization",
    function=randomization,
    title="Does the map change when the model's weights are random, another class is asked for, or labels were "
    "permuted?",
    paper="Adebayo et al., Sanity checks for saliency maps, NeurIPS 2018, arXiv:1810.03292; random logit: Sixt et al., "
    "2020, arXiv:1912.09818",
    passes="E per layer, or per stage (parameters); E (logit, labels)",
    traps="A check to pass, not a ranking: noise passes best. Maps that are multiplied by the input stay alike without "
    "any model, above all their absolute values: read `excess`, which has that part taken off. Maps that do not depend "
    "on the class have 1 for `logit`. Depths whose map is constant do not count, and `constant` is their share.",
    modalities=("image",),
    explains=True,
    presets={
        "default": RandomizationProtocol(),
        "logit": RandomizationProtocol("logit"),
        "labels": RandomizationProtocol("labels"),
    },
)
class Randomization(PerImage):
    """Mean rank correlation (lower is better), the same less the baseline, the baseline, and the share `constant`."""

    columns = ("rho", "excess", "baseline", "constant")
    outputs = ("rho", "excess", "baseline", "constant")
    better = (False, False, None, None)
    protocol: RandomizationProtocol

    def of(self, case: Case) -> tuple[Any, ...]:
        """Maps after randomisation."""
        if self.protocol.mode == "labels":
            again = case.needs("relabelled", "maps by a model trained on permuted labels (relabelled=)")
        else:
            again = case.needs("again", "a way to explain again (again=)")
        runner = self.protocol.runner

        def make() -> RandomizedResult:
            return runner.ask(case.subject, case.saliency, again, case.explained, case.model)

        return (case.once(runner, make),)

    def score(self, result: RandomizedResult) -> Tensor:
        """Per image; NaN where no two maps can be compared."""
        rho, baseline = randomization(result, self.protocol.sign), result.of(self.protocol.sign)[1]
        mean = rho.nanmean(1)
        return torch.stack([mean, mean - baseline, baseline, rho.isnan().double().mean(1)], 1)
