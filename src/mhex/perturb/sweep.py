"""The one sweep: units removed step by step, in the order of a map, and what the model says at each step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mhex._words import Pooling, check_pooling
from mhex.capture import Batch
from mhex.errors import ArgumentError
from mhex.perturb.curves import ORDERS, Order, SweepResult
from mhex.perturb.imputation import imputed
from mhex.perturb.patches import dropped_patches, on_patches
from mhex.perturb.ranks import Tie, check_tie, counts, generator_for, ranks
from mhex.perturb.references import PIXELS, WORDS
from mhex.perturb.removal import Change, Removal
from mhex.perturb.runner import Runner
from mhex.perturb.splitting import Words, check_split
from mhex.perturb.subject import Subject, top_class
from mhex.perturb.units import Units, image_units, text_units
from mhex.perturb.words import removed_words

_NOISE = 1  # purpose of random numbers


@dataclass(frozen=True)
class PerturbationSweep(Runner[SweepResult]):
    """How units are removed: the part of a protocol that decides which passes are made.

    Attributes:
        reference: What removed means. Images: `"black"`, `"zero"`, `"mean"`, `"blur"`, `"impute"`, or `"drop"` (a plain
            Vision Transformer is not given the patch). Texts: `"mask_token"`, `"drop"` (the token is deleted) or
            `"pad"` (it is not attended to).
        granularity: `"pixel"` ranks the map at the size of the image, `"patch"` the cells of its own grid, or for
            `"drop"` the patches of the model; texts are ranked by `"token"` or `"word"`.
        steps: T; from nothing removed to everything, so that there are T + 1 points.
        orders: `"mif"` removes the most important first, `"lif"` the least important.
        tie: How equal scores are ranked: `"random"`, by (seed, id), or `"stable"`.
        seed: Of ties and noise.
        sigma: Spread of the blur in pixels; None for a sixteenth of the shorter side.
        noise: Spread of what is added to imputed pixels.
        radius: Of the blur's kernel, 2 radius + 1 pixels wide; None for three times the spread.
        words: Which words granularity `"word"` ranks: those of the `"tokenizer"`, or those split at `"whitespace"`.
        pooling: Of a word: the `"max"` of the scores of its tokens, or their `"sum"`.
    """

    reference: str = "black"
    granularity: str = "pixel"
    steps: int = 20
    orders: tuple[Order, ...] = ORDERS
    tie: Tie = "random"
    seed: int = 0
    sigma: float | None = None
    noise: float = 0.01
    radius: int | None = None
    words: Words = "tokenizer"
    pooling: Pooling = "max"

    def __post_init__(self) -> None:
        if self.reference not in (*PIXELS, *WORDS):
            known = ", ".join((*PIXELS, *WORDS))
            raise ArgumentError(f"Expected the reference to be one of {known}, but got {self.reference!r}.")
        if self.granularity not in ("pixel", "patch", "token", "word"):
            raise ArgumentError(
                f"Expected granularity 'pixel', 'patch', 'token' or 'word', but got {self.granularity!r}."
            )
        if not isinstance(self.steps, int) or self.steps < 1:
            raise ArgumentError(f"Expected steps to be a whole number from 1 on, but got {self.steps!r}.")
        if not self.orders or any(order not in ORDERS for order in self.orders):
            raise ArgumentError(f"Expected orders 'mif' and 'lif', but got {self.orders!r}.")
        check_tie(self.tie)
        check_split(self.words)
        check_pooling(self.pooling)

    def ask(
        self, subject: Subject, saliency: Tensor, explained: Tensor | None = None, other: Tensor | None = None
    ) -> SweepResult:
        """Remove and ask.

        Args:
            subject: The samples, whose other passes are shared.
            saliency: Importance for one class of each sample: (B, H, W) or (B, h, w) for images, (B, T) for texts.
            explained: That class, (B,); None for the predicted one.
            other: Another class whose outputs are kept, (B,); -1 for none.
        """
        removal = self.ranked(subject, saliency)
        grid = counts(removal.units.number, self.steps)  # (B, T + 1)
        classes = subject.classes(explained, other)

        def read(logits: Tensor, samples: Tensor) -> tuple[Tensor, ...]:
            z, norm = subject.read(logits, classes[samples])
            # The two classes of a single output have the scores z and -z.
            mean = logits.double().mean(1) if logits.shape[1] > 1 else torch.zeros_like(z[:, 0])
            return z, norm, mean, top_class(logits), subject.rest(logits, classes[samples])

        last = torch.tensor([order == "lif" for order in self.orders], device=subject.device)
        rows = removal.ask(grid.mT.repeat(len(last), 1), last.repeat_interleave(self.steps + 1), read)
        tables = [row.view(len(last), self.steps + 1, *row.shape[1:]).transpose(1, 2) for row in rows]
        return SweepResult(self, classes, tuple(subject.ids), grid, removal.units.number, *tables)

    def ranked(self, subject: Subject, saliency: Tensor) -> Removal:
        """Units in the order of their importance."""
        units = self.units(subject, saliency)
        rank = ranks(units.scores, subject.ids, self.seed, self.tie, units.counted)
        return Removal(subject, units, rank, self.change(subject, units))

    def units(self, subject: Subject, saliency: Tensor) -> Units:
        """What is ranked: pixels, patches, tokens or words."""
        if subject.batch.modality == "image":
            if self.reference == "drop" and self.granularity == "patch":
                return image_units(subject, on_patches(subject, saliency), "patch")
            if self.reference == "drop":
                raise ArgumentError(
                    f"Expected granularity 'patch' for the reference 'drop' of images, but got {self.granularity!r}: "
                    "whole patches are dropped."
                )
            if self.reference not in PIXELS or self.granularity not in ("pixel", "patch"):
                raise ArgumentError(
                    f"Expected a reference and a granularity of images, but got {self.reference!r} and "
                    f"{self.granularity!r}."
                )
            return image_units(subject, saliency, self.granularity)
        if self.reference not in WORDS:
            raise ArgumentError(f"Expected the reference of texts to be one of {WORDS}, but got {self.reference!r}.")
        if self.granularity not in ("token", "word"):
            raise ArgumentError(f"Expected granularity 'token' or 'word' for texts, but got {self.granularity!r}.")
        return text_units(subject, saliency, self.granularity, self.words, self.pooling)

    def change(self, subject: Subject, units: Units) -> Change:
        """From removed units (M, N) of samples (M,) to inputs for the model."""
        if subject.batch.modality == "text":
            return lambda removed, samples: removed_words(
                subject, self.reference, units.spread(removed, samples), samples
            )
        if self.reference == "drop":
            return lambda removed, samples: dropped_patches(subject, removed, samples)
        pixels = subject.batch.pixels
        if self.reference != "impute":
            stand_in = subject.reference(self.reference, self.sigma, self.radius)

            def replaced(removed: Tensor, samples: Tensor) -> Batch:
                mask = units.spread(removed, samples)[:, None]
                return subject.variants(torch.where(mask, stand_in[samples], pixels[samples]), samples, rows=False)

            return replaced
        shape = pixels.shape[1:]
        draws = [torch.randn(shape, generator=generator_for(self.seed, i, _NOISE)) for i in subject.ids]
        noise = torch.stack(draws).to(pixels) * self.noise

        def filled(removed: Tensor, samples: Tensor) -> Batch:
            mask = units.spread(removed, samples)
            value = imputed(pixels[samples], mask)
            value = torch.where(mask[:, None], value + noise[samples], value)
            return subject.variants(value, samples, rows=False)

        return filled
