"""Comprehensiveness: what is lost without the most important words."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mhex._settings import check_that
from mhex.inputs.words import POOLING, Pooling, Words
from mhex.metrics import PerImage, Protocol, Scored, register_metric
from mhex.perturb import PassResult, PerturbationSweep, Runner, Subject, column_of, counts

_OF_SWEEP = ("reference", "granularity", "tie", "seed", "words", "pooling")


@dataclass(frozen=True)
class ShareResult(PassResult):
    """Probabilities of the explained class, the predicted one and the label; NaN where there is none."""

    before: Tensor  # of the samples as they are, (B, 3)
    without: Tensor  # with each share removed, (B, K, 3); NaN where a sample has no unit at all
    alone: Tensor  # with each share kept alone, of the same shape

    def of(self, scored: str) -> tuple[Tensor, Tensor, Tensor]:
        """Probabilities of one class before, without and alone: (B, 1), (B, K) and (B, K)."""
        column = column_of(scored, ~self.before.isnan())
        return self.before[:, None, column], self.without[..., column], self.alone[..., column]


@dataclass(frozen=True)
class ShareProtocol(Protocol, Runner[ShareResult]):
    """Which shares of the words of texts are removed, and how.

    As many units are kept alone as are removed: those of the sweep's grid at that share, and at least one. What is kept
    alone is what removal of the least important leaves, so that a sweep made for other metrics has these passes too.
    Parts are as for `PerturbationSweep`, but for the shares and the class.
    """

    reference: Literal["mask_token", "drop", "pad"] = "drop"
    percent: tuple[int, ...] = (1, 5, 10, 20, 50)  # whole numbers from 1 to 99, over which the mean is taken
    scored: Scored = "predicted"
    granularity: Literal["word", "token"] = "word"
    tie: str = "random"
    seed: int = 0
    words: Words = "tokenizer"
    pooling: Pooling = POOLING

    def __post_init__(self) -> None:
        super().__post_init__()
        right = bool(self.percent) and all(isinstance(q, int) and 0 < q < 100 for q in self.percent)
        check_that(right, "shares in percent, whole numbers from 1 to 99", self.percent)
        _ = self.sweep  # making it refuses what it cannot do

    @property
    def idle(self) -> dict[str, str]:
        if self.granularity == "word":
            return {}
        return dict.fromkeys(("words", "pooling"), f"it is of words, and granularity is {self.granularity!r}")

    @property
    def sweep(self) -> PerturbationSweep:
        """How units are ranked and removed, with steps of one percent."""
        return PerturbationSweep(steps=100, **{name: getattr(self, name) for name in _OF_SWEEP})

    def ask(self, subject: Subject, saliency: Tensor, explained: Tensor | None = None) -> ShareResult:
        """Remove and ask; arguments as for `PerturbationSweep`."""
        removal = self.sweep.ranked(subject, saliency)
        units = removal.units.number
        share = self.numbers(counts(units, 100), units)
        classes = subject.classes(explained)
        number = torch.cat([share, units[:, None] - share], 1).mT
        last = torch.arange(2 * len(self.percent), device=subject.device) >= len(self.percent)
        z, norm = removal.ask(number, last, classes)[:2]
        rows = (z - norm).exp().masked_fill(classes < 0, torch.nan)[..., :3]
        table = rows.view(2, len(self.percent), *rows.shape[1:]).transpose(1, 2)
        table = table.masked_fill((units == 0).view(-1, 1, 1), torch.nan)
        before = subject.probabilities(subject.logits, classes[:, :3])
        return ShareResult(tuple(subject.ids), before, *table, runner=self)

    def numbers(self, grid: Tensor, units: Tensor) -> Tensor:
        """How many units each share is, (B, K), by the units (B,) and those removed at each percent (B, 101)."""
        shares = torch.tensor(self.percent, device=grid.device)
        return torch.minimum(grid[:, shares].clamp_min(1), units[:, None])


class ShareMetric(PerImage):
    """A metric of a few shares of the units."""

    protocol: ShareProtocol

    def score(self, result: ShareResult) -> Tensor:
        """Mean over the shares."""
        return super().score(result).mean(1)


def comprehensiveness(result: ShareResult, scored: str = "predicted") -> Tensor:
    """`p(x) - p(x without the share)` for each share of the most important units, (B, K).

    Args:
        result: Result of passes with shares removed.
        scored: Whose probability is read.
    """
    before, without, _ = result.of(scored)
    return before - without


@register_metric(
    "comprehensiveness",
    function=comprehensiveness,
    title="How much of the class probability is lost without the most important words?",
    paper="DeYoung et al., ERASER, ACL 2020, arXiv:1911.03429",
    passes="10 F at most with sufficiency; 0 beside a sweep of 1 % with the same reference, "
    "but for texts of an odd number of words above 50",
    traps="Deleting words moves the others up ('drop'); not attending to them does not ('pad'); and a model that was "
    "trained with a mask token hardly misses a masked word ('mask_token'). Compare two of them.",
    modalities=("text",),
    presets={"default": ShareProtocol(), "eraser": ShareProtocol(), "mask_token": ShareProtocol("mask_token")},
)
class Comprehensiveness(ShareMetric):
    """Mean over the shares; higher is better."""
