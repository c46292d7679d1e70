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
        shape: Channels, height and width of the images.
        drops: `z_c(x) - z_c(x - I)`.
    """

    noise: NoisePass
    shape: tuple[int, int, int]
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

        A map is a sum over channels; each channel is taken to have an equal share of it. The changes are drawn again
        from their seed, so that none of them is kept.
        """
        image = self.shape[1:]
        maps = check_maps(saliency, len(self.ids), image).to(self.drops.values.device)
        maps = at_size(maps.double(), image).flatten(1)
        products = [
            self.noise.patterns(number, range(self.noise.draws), self.shape).mean(1).to(maps).flatten(1) @ sample
            for number, sample in zip(self.ids, maps, strict=True)
        ]
        return torch.stack(products)


@dataclass(frozen=True)
class NoisePass(Runner[NoiseResult]):
    """How inputs are changed. Nothing here depends on maps: all methods and classes share the passes.

    Attributes:
        kind: `"gaussian"` takes off noise: for maps that are gradients. `"square"` hides a square of random side and
            place, and its sum over the map is what the map foretells: for maps that are contributions.
        sigma: Of the noise, in units of the model's input.
        channels: Of the noise. `"shared"` is one number for each pixel, the same in all channels: maps are sums over
            channels, and foretell such changes without loss. `"own"` is one number for each value of the input, as in
            captum's examples: what channels have for themselves is then beyond any map.
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
    channels: str = "shared"

    def __post_init__(self) -> None:
        if self.kind not in ("gaussian", "square"):
            raise ArgumentError(f"Expected kind 'gaussian' or 'square', but got {self.kind!r}.")
        if not isinstance(self.draws, int) or self.draws < 1:
            raise ArgumentError(f"Expected draws to be a whole number from 1 on, but got {self.draws!r}.")
        if not self.sigma > 0:
            raise ArgumentError(f"Expected sigma of the noise to be above 0, but got {self.sigma!r}.")
        if self.channels not in ("shared", "own"):
            raise ArgumentError(f"Expected channels 'shared' or 'own', but got {self.channels!r}.")
        if self.reference not in PIXELS[:-1]:
            raise ArgumentError(
                f"Expected the reference to be one of {', '.join(PIXELS[:-1])}, but got {self.reference!r}."
            )

    def ask(self, subject: Subject, explained: Tensor | None = None, other: Tensor | None = None) -> NoiseResult:
        """Change and ask; classes as for `PerturbationSweep`."""
        if subject.batch.modality != "image":
            raise ArgumentError("Expected images: noise has no meaning on the tokens of texts.")
        pixels = subject.batch.pixels
        shape = (int(pixels.shape[1]), int(pixels.shape[2]), int(pixels.shape[3]))
        stand_in = None if self.kind == "gaussian" else subject.reference(self.reference, self.blur)

        def change(samples: Tensor, draws: Tensor) -> Batch:
            # Samples come in order, each with several of its draws.
            parts = [(b, draws[samples == b].tolist()) for b in dict.fromkeys(samples.tolist())]
            pattern = torch.cat([self.patterns(subject.ids[b], chosen, shape) for b, chosen in parts]).to(pixels)
            own = pixels[samples]
            changed = own - pattern if stand_in is None else torch.where(pattern > 0, stand_in[samples], own)
            return subject.variants(changed, samples, rows=False)

        drops = drops_of(subject, self, self.draws, change, subject.classes(explained, other), "noise")
        return NoiseResult(self, shape, drops)

    def patterns(self, number: int, draws: Sequence[int], shape: tuple[int, int, int]) -> Tensor:
        """Some changes of one sample, float64: noise, or 1 at hidden pixels and 0 elsewhere.

        Args:
            number: Id of the sample.
            draws: Numbers of the changes, M.
            shape: Channels, height and width of the sample.

        Returns:
            (M, C, H, W) where channels have noise of their own, (M, 1, H, W) where all share it.
        """
        seeds = torch.randint(2**62, (self.draws,), generator=generator_for(self.seed, number, _NOISE)).tolist()
        generators = [torch.Generator().manual_seed(seeds[n]) for n in draws]
        channels, height, width = shape
        if self.kind == "gaussian":
            size = (channels if self.channels == "own" else 1, height, width)
            return torch.stack([torch.randn(size, generator=g, dtype=torch.float64) for g in generators]) * self.sigma
        masks = torch.zeros(len(generators), 1, height, width, dtype=torch.float64)
        for mask, generator in zip(masks, generators, strict=True):
            length, row, column = torch.rand(3, generator=generator, dtype=torch.float64).tolist()
            side = 1 + int(length * max(1, min(height, width) // 2))  # up to half of the shorter side
            top, left = int(row * (height - side + 1)), int(column * (width - side + 1))
            mask[:, top : top + side, left : left + side] = 1
        return masks
