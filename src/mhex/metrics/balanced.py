"""Balanced: faithfulness both ways, class sensitivity and stability, measured together."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mhex._settings import check_that
from mhex.metrics import Case, PerImage, register_metric
from mhex.metrics.curve import GridProtocol
from mhex.metrics.fidelity import fidelity
from mhex.metrics.max_sensitivity import explain_again, image_inputs
from mhex.perturb import PassResult, Runner, Subject, SweepResult, check_images, check_map, generator_for
from mhex.stats.correlation import rank_correlation

_STEADY = 6  # purpose of random numbers


@dataclass(frozen=True)
class SteadyResult(PassResult):
    """Rank correlations of maps with those of noisy copies, (B, n); 0 for a constant map, which has no order."""

    rho: Tensor


@dataclass(frozen=True)
class BalancedProtocol(GridProtocol, Runner[SteadyResult]):
    """Protocol of curves of two classes, and of maps of noisy copies, which it makes itself.

    The spread of the noise is beside the range of the numbers of each image (highest less lowest), so that nobody needs
    to know how colours were normalised.
    """

    steps: int = 3  # few: more of them cost as many passes as more images do, and tell methods apart less
    noise: float = 0.02
    draws: int = 1  # noisy copies n of each image; 0 for none, as for texts, and then there is no stability

    def __post_init__(self) -> None:
        super().__post_init__()
        right = self.draws >= 0 and (not self.draws or self.noise > 0)
        check_that(right, "noise above 0 and at least one draw", f"{self.noise}, {self.draws}")

    @property
    def idle(self) -> dict[str, str]:
        without = {} if self.draws else {"noise": "there are no noisy copies, because draws is 0"}
        return {**super().idle, **without}

    @property
    def passes(self) -> tuple[Any, ...]:
        return (self.sweep, self) if self.draws else (self.sweep,)

    def ask(
        self, subject: Subject, saliency: Tensor, again: Callable[..., Tensor], explained: Tensor | None = None
    ) -> SteadyResult:
        """Add noise and explain again; arguments as for `NeighbourProtocol`."""
        check_images(subject)
        maps = check_map(subject, saliency).double().flatten(1)
        classes = subject.classes(explained)[:, 0]
        pixels = subject.batch.pixels
        spread = self.noise * (pixels.flatten(1).amax(1) - pixels.flatten(1).amin(1)).view(-1, 1, 1, 1)
        generators = [generator_for(self.seed, number, _STEADY) for number in subject.ids]
        rho = []
        for _ in range(self.draws):
            draw = torch.stack([torch.randn(pixels.shape[1:], generator=g, dtype=torch.float64) for g in generators])
            near = pixels + draw.to(pixels) * spread
            rho.append(rank_correlation(maps, explain_again(subject, again, near, classes, saliency)))
        return SteadyResult(tuple(subject.ids), torch.stack(rho, 1).nan_to_num(0.0), runner=self)


def balanced(first: SweepResult, second: SweepResult, steady: SteadyResult | None = None) -> Tensor:
    """Faithfulness, class sensitivity and stability of each image, (B, 3); (B, 2) without the last.

    With `F_c(S)` the area `A_LIF - A_MIF` under the centred logit of class `c` along map `S`: faithfulness is
    `F_c(S_c)`. Class sensitivity is `(F_c(S_c) - F_c(S_d) + F_d(S_d) - F_d(S_c)) / 2`, `d` the highest other class:
    exactly 0 for maps that do not depend on the class. Stability is the mean rank correlation of the map with those of
    noisy copies. All three are 0 on average for maps that are drawn at random for each input.

    Args:
        first: Curves along maps of `c`, with `d` as the other class.
        second: Curves along maps of `d`, with `c` as the other class.
        steady: Maps of noisy copies.
    """
    right = [fidelity(curves, "explained", "unit", centred=True)[:, 0] for curves in (first, second)]
    wrong = [fidelity(curves, "other", "unit", centred=True)[:, 0] for curves in (second, first)]
    columns = [right[0], (right[0] - wrong[0] + right[1] - wrong[1]) / 2]
    return torch.stack([*columns, *([] if steady is None else [steady.rho.mean(1).to(right[0])])], 1)


@register_metric(
    "balanced",
    function=balanced,
    title="Does the map order what the model uses, tell classes apart, and stay under noise?",
    paper="Ours, for mhex.recommend; of fidelity and class discrimination: Brocki, Binda & Chung, CDAM, 2023, "
    "arXiv:2312.02364",
    passes="4 T - 2 F + 2 E; 2 T - 1 F + 2 E where maps do not depend on the class",
    traps="Three numbers in units of their own: `mhex.recommend` weighs them by their spread over methods. A map that "
    "ignores the input is perfectly stable, and a method that ignores the class can be right about the one predicted.",
    explains=True,
    presets={"default": BalancedProtocol(), "text": BalancedProtocol("drop", steps=5, granularity="token", draws=0)},
)
class Balanced(PerImage):
    """Faithfulness, class sensitivity and, of images, stability; higher is better."""

    columns: tuple[str, ...] = ("faithfulness", "class_sensitivity", "stability")
    better: tuple[bool | None, ...] = (True, True, True)
    protocol: BalancedProtocol

    def __init__(self, preset: str = "default", **changes: Any) -> None:
        super().__init__(preset, **changes)
        if not self.protocol.draws:
            self.columns, self.outputs, self.better = self.columns[:2], self.outputs[:2], self.better[:2]

    def of(self, case: Case) -> tuple[Any, ...]:
        """Curves along maps of two classes, and maps of noisy copies."""
        again = case.needs("again", "a way to explain again (again=)")
        subject, sweep = case.subject, self.protocol.sweep
        classes = subject.predicted if case.explained is None else case.explained.to(subject.device)
        second = runner_up(subject, classes)
        texts = {**subject.batch.kwargs, "special_tokens_mask": subject.batch.special}
        image = subject.batch.modality == "image"
        maps = again(image_inputs(subject, subject.batch.pixels) if image else texts, second)
        curves = sweep.ask(subject, case.saliency, classes, second)
        # Maps that do not depend on the class need no passes of their own.
        equal = torch.equal(maps, case.saliency)
        pair = (curves, _exchanged(curves) if equal else sweep.ask(subject, maps, second, classes))
        return (*pair, self.protocol.ask(subject, case.saliency, again, classes)) if self.protocol.draws else pair


def runner_up(subject: Subject, classes: Tensor) -> Tensor:
    """The class with the highest score among all others than the given ones (B,)."""
    if subject.logits.shape[1] == 1:
        return 1 - classes
    return subject.logits.scatter(1, classes[:, None], -torch.inf).argmax(1)


def _exchanged(result: SweepResult) -> SweepResult:
    """The same curves, with the explained and the other class in each other's place."""
    places = [3, 1, 2, 0]
    names = ("classes", "z", "norm", "complement")
    return replace(result, **{name: getattr(result, name)[..., places] for name in names})
