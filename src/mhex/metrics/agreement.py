"""Agreement: do the sums of a map over regions say what the model loses without them, by several references?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mhex._settings import check_choice, check_that
from mhex.capture import Batch
from mhex.metrics import Case, PerImage, Protocol, register_metric
from mhex.metrics.box_sensitivity import BoxProtocol, BoxResult, box_sensitivity
from mhex.metrics.drops import Drops, drops_of
from mhex.perturb import PIXELS, WORDS, PassResult, Runner, Subject, check_map, generator_for, removed_words
from mhex.stats.correlation import linear_correlation

_SPANS = 7  # purpose of random numbers


@dataclass(frozen=True)
class SpanResult(PassResult):
    """What went with each span of tokens."""

    hidden: Tensor  # tokens of each span, bool (B, S, n, T)
    drops: Drops  # what the scores lost, with S n changes for each sample


@dataclass(frozen=True)
class SpanProtocol(Protocol, Runner[SpanResult]):
    """How spans of tokens are drawn and removed. Nothing here depends on maps, so that all of them share the passes."""

    reference: str = "drop"
    sizes: tuple[int, ...] = (1, 2, 3)  # tokens in a span; as many as a text has where it has fewer
    count: int = 40  # spans of each size
    seed: int = 0

    def ask(self, subject: Subject, explained: Tensor | None = None) -> SpanResult:
        """Remove each span and ask; the class as for `PerturbationSweep`."""
        _, special = subject.batch.roles
        hidden = torch.stack([self._spans(row, number) for row, number in zip(special.cpu(), subject.ids, strict=True)])
        hidden = hidden.to(subject.device)

        def change(samples: Tensor, draws: Tensor) -> Batch:
            return removed_words(subject, self.reference, hidden[samples].flatten(1, 2)[_rows(draws), draws], samples)

        total = hidden.shape[1] * hidden.shape[2]
        drops = drops_of(subject, self, total, change, subject.classes(explained), "spans")
        return SpanResult(drops.ids, hidden, drops, runner=self)

    def _spans(self, special: Tensor, number: int) -> Tensor:
        """Spans of a text, bool (S, n, T), by (seed, id, size): each token alone as often as any other."""
        places = (~special).nonzero()[:, 0]
        hidden = torch.zeros(len(self.sizes), self.count, len(special), dtype=torch.bool)
        for row, size in enumerate(self.sizes):
            starts = max(1, len(places) - size + 1)
            generator = generator_for(self.seed, number, _SPANS + size)
            rounds = [torch.randperm(starts, generator=generator) for _ in range(-(-self.count // starts))]
            for draw, start in enumerate(torch.cat(rounds)[: self.count].tolist()):
                hidden[row, draw, places[start : start + size]] = True
        return hidden


def _rows(draws: Tensor) -> Tensor:
    return torch.arange(len(draws), device=draws.device)


@dataclass(frozen=True)
class Regions(PassResult):
    """What went with regions, by each reference."""

    results: tuple[BoxResult | SpanResult, ...]


@dataclass(frozen=True)
class AgreementProtocol(Protocol, Runner[Regions]):
    """Which regions are removed, boxes of images or spans of tokens, and what stands in their place."""

    references: tuple[str, ...] = ("blur", "mean")  # over which the mean is taken, so that no filling decides alone
    sizes: tuple[int, ...] = (1, 2, 3)  # of boxes in cells of the grid; of spans in tokens
    count: int = 40  # regions of each size, by each reference
    seed: int = 0
    grid: int = 8  # cells along the shorter side of an image

    def __post_init__(self) -> None:
        check_that(bool(self.references), "at least one reference", "none")
        super().__post_init__()
        for name in self.references:
            check_choice("the reference", name, (*PIXELS[:-1], *WORDS))
        check_that(len({name in WORDS for name in self.references}) == 1, "references of one kind", self.references)
        _ = self.runners  # making them refuses what they cannot do

    @property
    def idle(self) -> dict[str, str]:
        return {**super().idle, **({"grid": "texts have none"} if self.references[0] in WORDS else {})}

    @property
    def runners(self) -> tuple[BoxProtocol | SpanProtocol, ...]:
        """One for each reference; their passes serve all maps."""
        shared: Any = {"sizes": self.sizes, "count": self.count, "seed": self.seed}
        if self.references[0] in WORDS:
            return tuple(SpanProtocol(name, **shared) for name in self.references)
        return tuple(BoxProtocol(name, grid=self.grid, **shared) for name in self.references)

    def ask(self, subject: Subject, explained: Tensor | None = None) -> Regions:
        """Remove regions and ask; the class as for `PerturbationSweep`."""
        text = subject.batch.modality == "text"
        expectation = f"references of {'texts' if text else 'images'}"
        check_that((self.references[0] in WORDS) == text, expectation, self.references)
        return Regions(
            tuple(subject.ids), tuple(runner.ask(subject, explained) for runner in self.runners), runner=self
        )


def agreement(regions: Regions, saliency: Tensor, explained: Tensor | None = None) -> Tensor:
    """`mean_{ref, size} Pearson(u, d)` of the sums `u` of the map over regions and the losses `d` of the logit: (B,).

    A correlation counts 0 where all sums or all losses are equal.

    Args:
        regions: Results of boxes or spans.
        saliency: Maps (B, h, w), of texts (B, T).
        explained: Class whose logit is read, (B,); None for the predicted class.
    """
    values = []
    for result in regions.results:
        if isinstance(result, BoxResult):
            values.append(box_sensitivity(result, saliency, explained))
        else:
            sums = torch.einsum("bsnt,bt->bsn", result.hidden.double(), saliency.to(result.hidden.device).double())
            lost = result.drops.of(explained).view(sums.shape)
            flat = lost.amax(-1) - lost.amin(-1) <= result.drops.rounding[:, None]
            values.append(linear_correlation(sums, lost).masked_fill(flat, 0.0).nan_to_num(0.0))
    return torch.cat(values, 1).mean(1)


@register_metric(
    "agreement",
    function=agreement,
    title="Do the sums of the map over regions say what the model loses without them, whatever stands in their place?",
    paper="Ours, for mhex.recommend; of boxes: Brocki, Binda & Chung, CDAM, 2023, arXiv:2312.02364",
    passes="R S n F for R references, S sizes and n regions, once for all methods and classes",
    traps="Regions are boxes, or spans of words that follow each other: what distant parts do together is not seen. "
    "The sums speak for a map's own scale, so that a few extreme pixels can decide a correlation.",
    presets={"default": AgreementProtocol(), "text": AgreementProtocol(("drop",))},
)
class Agreement(PerImage):
    """Mean correlation over references and sizes; higher is better."""

    protocol: AgreementProtocol

    def of(self, case: Case) -> tuple[Any, ...]:
        """Losses without regions, and the maps."""
        return self.protocol.ask(case.subject, case.explained), check_map(case.subject, case.saliency), case.explained
