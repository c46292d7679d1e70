"""Noise, or squares hidden at random: by how much scores change, for all maps and classes at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mhex.capture import Batch
from mhex.errors import ArgumentError
from mhex.perturb.drops import Drops, drops_of
from mhex.perturb.ranks import generator_for
from mhex.perturb.references import PIXELS
from mhex.perturb.runner import Runner
from mhex.perturb.subject import Subject
from mhex.perturb.units import at_size, check_maps

_NOISE = 2  # purpose of random numbers


@dataclass(frozen=True)
class NoiseResult:
    """What scores lost under each change.

    Attributes:
        noise: How inputs were changed.
        image: Height and width of the images.
        drops: `z_c(x) - z_c(x - I)`.
    """

    noise: NoisePass
    image: tuple[int, int]
    drops: Drops

    @property
    def runner(self) -> NoisePass:
        """How inputs were changed."""
        return self.noise

    @property
    def ids(self) -> tuple[int, ...]:
        return self.drops.ids

    def products(self, saliency: Tensor) -> Tensor:
        """`I . S` of maps (B, h, w), brought to the size of the image, for each change: (B, n), float64.

        The changes are drawn again from their seed, so that none of them is kept.
        """
        maps = check_maps(saliency, len(self.ids), self.image).to(self.drops.values.device)
        maps = at_size(maps.double(), self.image).flatten(1)
        found = [
            self.noise.patterns(number, range(self.noise.draws), self.image).to(maps).flatten(1) @ one
            for number, one in zip(self.ids, maps, strict=True)
        ]
        return torch.stack(found)


@dataclass(frozen=True)
class NoisePass(Runner[NoiseResult]):
    """How inputs are changed. Nothing here depends on maps: all methods and classes share the passes.

    Attributes:
        kind: `"gaussian"` takes off noise, one number for each pixel and the same in all channels, because maps are
            sums over channels: for maps that are gradients. `"square"` hides a square of random side and place, and its
            sum over the map is what the map foretells: for maps that are contributions.
        sigma: Of the noise, in units of the model's input.
        draws: Changes of each sample, n.
        seed: Of the changes.
        reference: What a hidden square shows.
        blur: Spread of the reference `"blur"`; None for a sixteenth of the shorter side.
    """

    kind: str = "square"
    sigma: float = 0.1
    draws: int = 100
    seed: int = 0
    reference: str = "blur"
    blur: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in ("gaussian", "square"):
            raise ArgumentError(f"Expected kind 'gaussian' or 'square', but got {self.kind!r}.")
        if not isinstance(self.draws, int) or self.draws < 1:
            raise ArgumentError(f"Expected draws to be a whole number from 1 on, but got {self.draws!r}.")
        if not self.sigma > 0:
            raise ArgumentError(f"Expected sigma of the noise to be above 0, but got {self.sigma!r}.")
        if self.reference not in PIXELS[:-1]:
            raise ArgumentError(
                f"Expected the reference to be one of {', '.join(PIXELS[:-1])}, but got {self.reference!r}."
            )

    def ask(self, subject: Subject, explained: Tensor | None = None, other: Tensor | None = None) -> NoiseResult:
        """Change and ask; classes as for `PerturbationSweep`."""
        if subject.batch.modality != "image":
            raise ArgumentError("Expected images: noise has no meaning on the tokens of texts.")
        pixels = subject.batch.pixels
        image = (int(pixels.shape[-2]), int(pixels.shape[-1]))
        stand_in = None if self.kind == "gaussian" else subject.reference(self.reference, self.blur)

        def change(samples: Tensor, draws: Tensor) -> Batch:
            # Samples come in order, each with several of its draws.
            parts = [(b, draws[samples == b].tolist()) for b in dict.fromkeys(samples.tolist())]
            pattern = torch.cat([self.patterns(subject.ids[b], chosen, image) for b, chosen in parts])
            pattern = pattern[:, None].to(pixels)
            own = pixels[samples]
            changed = own - pattern if stand_in is None else torch.where(pattern > 0, stand_in[samples], own)
            return subject.variants(changed, samples, rows=False)

        drops = drops_of(subject, self, self.draws, change, subject.classes(explained, other), "noise")
        return NoiseResult(self, image, drops)

    def patterns(self, number: int, draws: Sequence[int], image: tuple[int, int]) -> Tensor:
        """Some changes of one sample, (M, H, W), float64: noise, or 1 at hidden pixels and 0 elsewhere."""
        seeds = torch.randint(2**62, (self.draws,), generator=generator_for(self.seed, number, _NOISE)).tolist()
        own = [torch.Generator().manual_seed(seeds[n]) for n in draws]
        if self.kind == "gaussian":
            return torch.stack([torch.randn(image, generator=g, dtype=torch.float64) for g in own]) * self.sigma
        height, width = image
        found = torch.zeros(len(own), height, width, dtype=torch.float64)
        for n, generator in enumerate(own):
            length, row, column = torch.rand(3, generator=generator, dtype=torch.float64).tolist()
            side = 1 + int(length * max(1, min(image) // 2))  # up to half of the shorter side
            top, left = int(row * (height - side + 1)), int(column * (width - side + 1))
            found[n, top : top + side, left : left + side] = 1
        return found
