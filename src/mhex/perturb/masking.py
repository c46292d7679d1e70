"""Single passes with the salient part hidden, or kept alone."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mhex._settings import check_choice, check_seed, check_that
from mhex.perturb.references import PIXELS, WORDS
from mhex.perturb.subject import PassResult, Runner, Subject, column_of
from mhex.perturb.units import at_size, check_map, ranks, removed_words, text_units


@dataclass(frozen=True)
class MaskedResult(PassResult):
    """Probabilities before and after."""

    before: Tensor  # of the explained class, the predicted one and the label, (B, 3); NaN where there is none
    after: Tensor  # the same with a part hidden; NaN where a text has no token to hide
    scaled: Tensor  # maps from 0 to 1, (B, H, W), or (B, T)

    def of(self, scored: str) -> tuple[Tensor, Tensor]:
        """Probabilities of one class before and after, (B,) each."""
        column = column_of(scored, ~self.before.isnan())
        return self.before[:, column], self.after[:, column]


@dataclass(frozen=True)
class MaskedPass(Runner[MaskedResult]):
    """How the part is hidden."""

    mode: str = "remove"  # what is salient, or "keep" it alone; "soft-remove" and "soft-keep" as far as the map says
    reference: str = "zero"  # what hidden means; see `PerturbationSweep`
    threshold: float = 0.5  # of images: salient is above it, on the map scaled from 0 to 1
    fraction: float = 0.1  # of texts: this share of the tokens is salient, at least one of them
    seed: int = 0  # of ties between tokens
    sigma: float | None = None  # spread of the blur
    rounding: str = "up"  # of texts: whether that share is rounded up or down
    most: int | None = None  # of texts: no more tokens than this are salient

    def __post_init__(self) -> None:
        check_choice("mode", self.mode, ("remove", "soft-remove", "keep", "soft-keep"))
        check_choice("the reference", self.reference, (*PIXELS[:-1], *WORDS))
        check_seed("seed", self.seed)
        check_choice("rounding", self.rounding, ("up", "down"))
        check_that(0 < self.fraction <= 1, "fraction to be above 0 and at most 1", self.fraction)
        check_that(self.most is None or self.most >= 1, "most to be at least one token, or None", self.most)

    def ask(self, subject: Subject, saliency: Tensor, explained: Tensor | None = None) -> MaskedResult:
        """Hide and ask; arguments as for `PerturbationSweep`."""
        classes = subject.classes(explained)[:, :3]
        image = subject.batch.modality == "image"
        scaled, change, empty = (self._image if image else self._text)(subject, saliency)
        chunks = subject.run(subject.batch.size, change)
        after = torch.cat([subject.probabilities(logits, classes[samples]) for samples, logits in chunks])
        before, after = subject.probabilities(subject.logits, classes), after.masked_fill(empty[:, None], torch.nan)
        return MaskedResult(tuple(subject.ids), before, after, scaled, runner=self)

    def _image(self, subject: Subject, saliency: Tensor) -> tuple[Tensor, Any, Tensor]:
        """Scaled maps, from numbers of samples to inputs for the model, and which samples have nothing to hide."""
        check_choice("the reference", self.reference, PIXELS[:-1])
        pixels = subject.batch.pixels
        scaled = minmax(at_size(check_map(subject, saliency), (pixels.shape[-2], pixels.shape[-1])))
        hidden = scaled if self.mode.startswith("soft") else (scaled > self.threshold).to(scaled)
        hidden = (1 - hidden if self.mode.endswith("keep") else hidden)[:, None].to(pixels)
        changed = torch.lerp(pixels, subject.reference(self.reference, self.sigma), hidden)
        nothing = torch.zeros(len(pixels), dtype=torch.bool, device=pixels.device)
        return scaled, lambda jobs: subject.variants(changed, jobs), nothing

    def _text(self, subject: Subject, saliency: Tensor) -> tuple[Tensor, Any, Tensor]:
        right = self.reference in WORDS and not self.mode.startswith("soft")
        expectation = f"a reference of texts ({', '.join(WORDS)}) and a mode that is not soft"
        check_that(right, expectation, f"{self.reference!r} and {self.mode!r}")
        units = text_units(subject, saliency, "token")
        valid = ~subject.batch.roles[1]
        place = ranks(units.scores, subject.ids, self.seed, "random", valid)
        # Whole numbers, so that there are no floating-point surprises: 0.1 of 30 is 3, rounded up or down.
        above = 9_999 if self.rounding == "up" else 0
        number = ((units.number * round(self.fraction * 10_000) + above) // 10_000).clamp(1, self.most)
        salient = place < number[:, None]
        hidden = (~salient if self.mode == "keep" else salient) & valid
        scaled, nothing = minmax(units.scores), units.number == 0
        return scaled, lambda jobs: removed_words(subject, self.reference, hidden[jobs], jobs), nothing


def minmax(saliency: Tensor) -> Tensor:
    """Maps (B, ...) from 0 to 1, each by itself; a constant map becomes zero."""
    flat = saliency.flatten(1)
    low = flat.amin(1, keepdim=True)
    reach = flat.amax(1, keepdim=True) - low
    return ((flat - low) / reach.clamp_min(torch.finfo(flat.dtype).tiny)).view_as(saliency)
