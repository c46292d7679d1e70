"""Infidelity: how far the change that a map foretells is from the change of the score."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from mhex._settings import check_choice, check_that
from mhex.capture import Batch
from mhex.metrics import Case, PerImage, Protocol, register_metric
from mhex.metrics.drops import Drops, drops_of
from mhex.perturb import PIXELS, PassResult, Runner, Subject, at_size, check_images, check_maps, generator_for

_NOISE = 2  # purpose of random numbers


@dataclass(frozen=True)
class NoiseResult(PassResult):
    """What scores of images of a shape (C, H, W) lost under each change: `z_c(x) - z_c(x - I)`."""

    shape: tuple[int, int, int]
    drops: Drops

    def products(self, saliency: Tensor) -> Tensor:
        """`I . S` of maps (B, h, w), brought to the size of the image, for each change: (B, n), float64.

        A map is a sum over channels; each channel is taken to have an equal share of it. The changes are drawn again
        from their seed, so that none of them is kept.
        """
        image = self.shape[1:]
        maps = check_maps(saliency, len(self.ids), image).to(self.drops.values.device)
        maps = at_size(maps.double(), image).flatten(1)
        rows = zip(self.ids, maps, strict=True)
        patterns = ((self.runner.patterns(i, range(self.runner.draws), self.shape), sample) for i, sample in rows)
        return torch.stack([pattern.mean(1).to(maps).flatten(1) @ sample for pattern, sample in patterns])


@dataclass(frozen=True)
class NoiseProtocol(Protocol, Runner[NoiseResult]):
    """How inputs are changed. Nothing here depends on maps: all methods and classes share the passes.

    Kind `"gaussian"` takes off noise: for maps that are gradients. `"square"` hides a square of random side and place,
    and its sum over the map is what the map foretells: for maps that are contributions. Noise of `"shared"` channels is
    one number for each pixel: maps are sums over channels, and foretell such changes without loss. `"own"` is a number
    for each value of the input, as in captum's examples: what channels have for themselves is then beyond any map.
    """

    blur_parts = ("blur",)
    kind: Literal["gaussian", "square"] = "square"
    sigma: float = 0.1  # spread of the noise, in units of the model's input
    draws: int = 100  # changes of each sample, n
    seed: int = 0
    reference: str = "blur"  # what a hidden square shows
    blur: float | None = None  # spread of the reference blur; None for a sixteenth of the shorter side
    channels: Literal["shared", "own"] = "shared"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_that(self.draws >= 1, "draws to be a whole number from 1 on", self.draws)
        check_that(self.sigma > 0, "sigma of the noise to be above 0", self.sigma)
        check_choice("the reference", self.reference, PIXELS[:-1])  # imputed pixels depend on all that is removed

    @property
    def idle(self) -> dict[str, str]:
        if self.kind == "gaussian":
            return dict.fromkeys(("reference", "blur"), "it is of hidden squares, and kind is 'gaussian'")
        noise = {
            "sigma": "it is of Gaussian noise, and kind is 'square'; the spread of the blur is `blur`",
            "channels": "it is of Gaussian noise, and kind is 'square'",
        }
        return noise | super().idle

    def ask(self, subject: Subject, explained: Tensor | None = None, other_class: Tensor | None = None) -> NoiseResult:
        """Change and ask; classes as for `PerturbationSweep`."""
        check_images(subject)
        pixels = subject.batch.pixels
        shape = (int(pixels.shape[1]), int(pixels.shape[2]), int(pixels.shape[3]))
        stand_in = None if self.kind == "gaussian" else subject.reference(self.reference, self.blur)

        def change(samples: Tensor, draws: Tensor) -> Batch:
            # Samples come in order, each with several of its draws.
            rows: dict[int, list[int]] = {}
            for sample, draw in zip(samples.tolist(), draws.tolist(), strict=True):
                rows.setdefault(sample, []).append(draw)
            pattern = torch.cat([self.patterns(subject.ids[b], numbers, shape) for b, numbers in rows.items()])
            pattern, clean = pattern.to(pixels), pixels[samples]
            changed = clean - pattern if stand_in is None else torch.where(pattern > 0, stand_in[samples], clean)
            return subject.variants(changed, samples, rows=False)

        drops = drops_of(subject, self, self.draws, change, subject.classes(explained, other_class), "noise")
        return NoiseResult(drops.ids, shape, drops, runner=self)

    def patterns(self, number: int, draws: Sequence[int], shape: tuple[int, int, int]) -> Tensor:
        """M changes of a sample by its id, float64: noise, or 1 at hidden pixels and 0 elsewhere.

        The shape is (M, C, H, W) where channels have noise of their own, (M, 1, H, W) where all share it.
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
            top, start = int(row * (height - side + 1)), int(column * (width - side + 1))
            mask[:, top : top + side, start : start + side] = 1
        return masks


def infidelity(result: NoiseResult, saliency: Tensor, explained: Tensor | None = None) -> Tensor:
    """`E[(b I.S - D)^2] / E[D^2]` with the best factor `b` for the map, `E[(I.S - D)^2]`, and `b`: (B, 3).

    `D = z(x) - z(x - I)`. The first is 0 for a perfect map and 1 for a useless one, whatever its unit; 1 where `I.S` is
    always 0, and NaN where the score never changes.

    Args:
        result: Result of noise.
        saliency: Maps (B, h, w).
        explained: Class whose logit is read, (B,); None for the predicted class.
    """
    drops = result.drops.of(explained)
    still = (drops.abs() <= result.drops.rounding[:, None]).all(1, keepdim=True)
    return squared_errors(result.products(saliency), drops.masked_fill(still, 0.0))


def squared_errors(foretold: Tensor, seen: Tensor) -> Tensor:
    """The same from `I.S` (B, n) and `D` (B, n)."""
    size = foretold.square().mean(1)
    factor = torch.where(size > 0, (foretold * seen).mean(1) / size, 0.0)
    free = (factor[:, None] * foretold - seen).square().mean(1) / seen.square().mean(1)
    return torch.stack([free, (foretold - seen).square().mean(1), factor], 1)


@register_metric(
    "infidelity",
    function=infidelity,
    title="How far is the change of the score that the map foretells from the one that is seen?",
    paper="Yeh et al., NeurIPS 2019, arXiv:1901.09392",
    passes="100 F, once for all methods and classes",
    traps="Maps without a unit, such as those of the CAM family, can be compared by the scale-free form alone: `raw` "
    "depends on their size, and on the size to which they were brought. The best factor may be negative, so that a map "
    "and its negative score the same: `reversed` is the share of such images. Noise fits gradients, hidden squares fit "
    "contributions. Noise is shared by the channels of a pixel, because a map has one number for all of them; preset "
    "`captum` draws it for each channel, as the example in captum's manual does, and its numbers are higher for maps "
    "of colour images, however good they are.",
    modalities=("image",),
    presets={
        "default": NoiseProtocol(),
        "gradient": NoiseProtocol("gaussian"),
        "captum": NoiseProtocol("gaussian", sigma=0.003, draws=10, channels="own"),
    },
)
class Infidelity(PerImage):
    """Scale-free infidelity, raw infidelity (lower is better), and the share of maps that point the wrong way."""

    columns = ("value", "raw", "reversed")
    better = (False, False, None)
    skips = "scores that noise does not change"
    protocol: NoiseProtocol

    def of(self, case: Case) -> tuple[Any, ...]:
        result = self.protocol.ask(case.subject, case.explained, case.other_class)
        return result, case.saliency, case.explained

    def score(self, result: NoiseResult, saliency: Tensor, explained: Tensor | None = None) -> Tensor:
        free, raw, factor = infidelity(result, saliency, explained).unbind(1)
        return torch.stack([free, raw, (factor < 0).double()], 1)
