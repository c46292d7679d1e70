"""Maps after the model has forgotten what it learned, or for another class: how alike they still are."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mhex._progress import track
from mhex.capture import unwrap
from mhex.errors import ArgumentError
from mhex.perturb.correlation import rank_correlation
from mhex.perturb.neighbours import check_images, explain_again
from mhex.perturb.ranks import counts, generator_for
from mhex.perturb.runner import Runner
from mhex.perturb.subject import Subject
from mhex.perturb.units import check_map
from mhex.perturb.weights import layers_with_weights, randomize, restored

_CLASS, _INPUT = 4, 5  # purposes of random numbers
_SIGNS = ("signed", "absolute")
_PAIRS = 10  # of unrelated weights, for the baseline
_SPREAD = 1_000_003  # seeds and layers do not meet
_MODES = ("parameters", "logit", "labels")


@dataclass(frozen=True)
class RandomizedResult:
    """Rank correlations with the map of the model as it is, of maps and of their absolute values.

    Attributes:
        ids: Number of each sample in its data set.
        rho: (B, L, 2), L the number of layers renewed so far, or 1; NaN where a map is constant.
        baseline: What two models that have nothing in common would reach by multiplying their gradients with this
            input, (B, 2).
        runner: How it was made; None where it is not known.
    """

    ids: tuple[int, ...]
    rho: Tensor
    baseline: Tensor
    runner: RandomizedPass | None = None

    def of(self, sign: str) -> tuple[Tensor, Tensor]:
        """Correlations (B, L) and baseline (B,) of `"signed"` maps, or of their `"absolute"` values."""
        if sign not in _SIGNS:
            raise ArgumentError(f"Expected sign to be one of {', '.join(_SIGNS)}, but got {sign!r}.")
        return self.rho[..., _SIGNS.index(sign)], self.baseline[:, _SIGNS.index(sign)]


@dataclass(frozen=True)
class RandomizedPass(Runner[RandomizedResult]):
    """What is randomised.

    Attributes:
        mode: `"parameters"`: layer after layer from the output to the input, each staying random. `"logit"`: another
            class, drawn at random, is explained. `"labels"`: a model trained on permuted labels is explained.
        seed: Of new weights, classes and the baseline.
        stages: Layers are renewed in so many parts; None for one layer at a time.
    """

    mode: str = "parameters"
    seed: int = 0
    stages: int | None = None

    def __post_init__(self) -> None:
        if self.mode not in _MODES:
            raise ArgumentError(f"Expected mode to be one of {', '.join(_MODES)}, but got {self.mode!r}.")
        if self.stages is not None and self.stages < 1:
            raise ArgumentError(f"Expected at least one stage, but got {self.stages!r}.")

    def ask(
        self,
        subject: Subject,
        saliency: Tensor,
        again: Callable[..., Tensor],
        explained: Tensor | None = None,
        explained_model: nn.Module | None = None,
    ) -> RandomizedResult:
        """Randomise and explain again.

        Args:
            subject: Images.
            saliency: Their maps, (B, h, w).
            again: From inputs and classes (B,) to maps of the same shape; by the second model for `"labels"`.
            explained: The class of each map, (B,); None for the predicted one.
            explained_model: The model that `again` explains, if it is not that of the subject.
        """
        check_images(subject)
        maps = check_map(subject, saliency).double().flatten(1)
        classes = subject.classes(explained)[:, 0]
        if self.mode == "logit":
            classes = self._another(subject, classes)
        changed = subject.model if explained_model is None else unwrap(explained_model)
        found = []
        # Closed at once also after an error, so that weights are put back before anybody sees it.
        with closing(self._stages(subject, changed)) as stages:
            for _ in stages:
                new = explain_again(subject, again, subject.batch.pixels, classes, saliency)
                found.append(_alike(maps, new))
        return RandomizedResult(tuple(subject.ids), torch.stack(found, 1), self._baseline(subject, saliency), self)

    def _stages(self, subject: Subject, model: nn.Module) -> Generator[int]:
        """Once after each part of the layers has been renewed; once for the other modes."""
        if self.mode != "parameters":
            yield 0
            return
        layers = layers_with_weights(model)[::-1]
        if not layers:
            raise ArgumentError("Expected a model with parameters, but there is nothing to randomise.")
        ends = counts(torch.tensor(len(layers)), min(self.stages or len(layers), len(layers))).tolist()
        with restored(model):
            for stage in track(range(1, len(ends)), "layers", subject.progress):
                for n in range(ends[stage - 1], ends[stage]):
                    randomize(layers[n], self.seed * _SPREAD + n)
                yield stage

    def _another(self, subject: Subject, classes: Tensor) -> Tensor:
        """Another class for each sample, by (seed, id)."""
        steps = [
            int(torch.randint(1, subject.count, (1,), generator=generator_for(self.seed, number, _CLASS)))
            for number in subject.ids
        ]
        return (classes + torch.tensor(steps, device=classes.device)) % subject.count

    def _baseline(self, subject: Subject, saliency: Tensor) -> Tensor:
        """Mean correlation of maps `x w` and `x v` at the size of the maps, `w` and `v` drawn apart; (B, 2)."""
        pixels = subject.batch.pixels.double()
        found = []
        for number, image in zip(subject.ids, pixels, strict=True):
            draw = generator_for(self.seed, number, _INPUT)
            weights = torch.randn((2, _PAIRS, *image.shape), generator=draw, dtype=torch.float64).to(image.device)
            maps = F.adaptive_avg_pool2d((image * weights).sum(2), (saliency.shape[-2], saliency.shape[-1]))
            found.append(_alike(*maps.flatten(2)).mean(0))
        return torch.stack(found)


def _alike(first: Tensor, second: Tensor) -> Tensor:
    """Rank correlations of rows (M, N), with their signs and without: (M, 2)."""
    return torch.stack([rank_correlation(first, second), rank_correlation(first.abs(), second.abs())], -1)
