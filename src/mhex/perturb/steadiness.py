"""Maps of the same samples with a little noise: how alike they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mhex.errors import ArgumentError
from mhex.perturb.correlation import rank_correlation
from mhex.perturb.neighbours import check_images, explain_again
from mhex.perturb.ranks import generator_for
from mhex.perturb.runner import Runner
from mhex.perturb.subject import Subject
from mhex.perturb.units import check_map

_STEADY = 6  # purpose of random numbers


@dataclass(frozen=True)
class SteadyResult:
    """How alike maps stay.

    Attributes:
        ids: Number of each sample in its data set.
        rho: Rank correlation of the map with that of each noisy copy, (B, n); 0 where a map is constant, since it has
            no order to keep.
        runner: How it was made; None where it is not known.
    """

    ids: tuple[int, ...]
    rho: Tensor
    runner: SteadyPass | None = None


@dataclass(frozen=True)
class SteadyPass(Runner[SteadyResult]):
    """How noise is drawn.

    Attributes:
        noise: Spread of the noise beside the range of the numbers of each image (highest less lowest), so that nobody
            needs to know how colours were normalised.
        draws: Noisy copies of each sample, n.
        seed: Of the noise.
    """

    noise: float = 0.02
    draws: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.noise > 0 or not isinstance(self.draws, int) or self.draws < 1:
            raise ArgumentError(
                f"Expected noise above 0 and at least one draw, but got {self.noise!r}, {self.draws!r}."
            )

    def ask(
        self, subject: Subject, saliency: Tensor, again: Callable[..., Tensor], explained: Tensor | None = None
    ) -> SteadyResult:
        """Add noise and explain again.

        Args:
            subject: Images.
            saliency: Their maps, (B, h, w).
            again: From inputs and classes (B,) to maps of the same shape.
            explained: The class of each map, (B,), which stays; None for the predicted one.
        """
        check_images(subject)
        maps = check_map(subject, saliency).double().flatten(1)
        classes = subject.classes(explained)[:, 0]
        pixels = subject.batch.pixels
        spread = self.noise * (pixels.flatten(1).amax(1) - pixels.flatten(1).amin(1)).view(-1, 1, 1, 1)
        generators = [generator_for(self.seed, number, _STEADY) for number in subject.ids]
        found = []
        for _ in range(self.draws):
            draw = torch.stack([torch.randn(pixels.shape[1:], generator=g, dtype=torch.float64) for g in generators])
            near = pixels + draw.to(pixels) * spread
            found.append(rank_correlation(maps, explain_again(subject, again, near, classes, saliency)))
        return SteadyResult(tuple(subject.ids), torch.stack(found, 1).nan_to_num(0.0), self)
