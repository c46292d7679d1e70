"""Max-sensitivity: how much a map changes when the input changes a little."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from mhex._settings import check_that
from mhex.errors import warn
from mhex.metrics import Case, PerImage, Protocol, register_metric
from mhex.perturb import PassResult, Runner, Subject, check_images, check_map, generator_for, top_class

_NEIGHBOURS = 3  # purpose of random numbers


@dataclass(frozen=True)
class NeighbourResult(PassResult):
    """How maps and predictions of the neighbours differ."""

    size: Tensor  # norm of the map of each sample, (B,), float64
    change: Tensor  # norm of the difference of its neighbours' maps, (B, n)
    flipped: Tensor  # whether they are predicted otherwise, bool (B, n)


@dataclass(frozen=True)
class NeighbourProtocol(Protocol, Runner[NeighbourResult]):
    """How neighbours are drawn."""

    radius: float = 0.02  # every number of the input moves by at most so much, evenly
    draws: int = 50  # neighbours of each sample, n
    seed: int = 0
    # The radius is in colours from 0 to 1, before normalisation; with "model", and where that is not known, which a
    # warning says, in units of the model's input.
    units: Literal["raw", "model"] = "raw"

    def __post_init__(self) -> None:
        super().__post_init__()
        right = self.radius > 0 and self.draws >= 1
        check_that(right, "a radius above 0 and at least one draw", f"{self.radius} and {self.draws}")

    def ask(
        self, subject: Subject, saliency: Tensor, again: Callable[..., Tensor], explained: Tensor | None = None
    ) -> NeighbourResult:
        """Draw neighbours of images with maps (B, h, w), and explain them for the same classes (B,).

        `again` makes maps of the same shape of inputs and classes; `explained` of None is the predicted class.
        """
        check_images(subject)
        maps = check_map(subject, saliency).double().flatten(1)
        classes = subject.classes(explained)[:, 0]
        pixels, radius = subject.batch.pixels, self._radius(subject)
        generators = [generator_for(self.seed, number, _NEIGHBOURS) for number in subject.ids]
        change, flipped = [], []
        for _ in range(self.draws):
            draw = torch.stack([torch.rand(pixels.shape[1:], generator=g, dtype=torch.float64) for g in generators])
            near = pixels + ((2 * draw - 1).to(pixels.device) * radius).to(pixels)
            change.append((explain_again(subject, again, near, classes, saliency) - maps).norm(dim=1))
            chunks = subject.run(subject.batch.size, partial(subject.variants, near))
            predicted = torch.cat([top_class(logits) for _, logits in chunks])
            flipped.append(predicted != subject.predicted)
        runner = self if subject.batch.scale is not None else replace(self, units="model")
        numbers = (maps.norm(dim=1), torch.stack(change, 1), torch.stack(flipped, 1))
        return NeighbourResult(tuple(subject.ids), *numbers, runner=runner)

    def _radius(self, subject: Subject) -> Tensor:
        """The radius in units of the model's input, (C, 1, 1) or a single number."""
        scale = subject.batch.scale
        if self.units == "raw" and scale is not None:
            return self.radius / scale[1].double().to(subject.device).view(-1, 1, 1)
        if self.units == "raw":
            warn("The radius is in units of the model's input; for raw colours give preprocess= with mean and std.")
        return torch.tensor(self.radius, dtype=torch.float64, device=subject.device)


def image_inputs(subject: Subject, pixels: Tensor) -> Any:
    """Pixels of the samples as `mhex.explain` takes them, with whatever else the model was given."""
    kwargs = subject.batch.kwargs
    return {"pixel_values": pixels, **kwargs} if kwargs else pixels


def explain_again(
    subject: Subject, again: Callable[..., Tensor], pixels: Tensor, classes: Tensor, like: Tensor
) -> Tensor:
    """Maps of other pixels of the samples, (B, N), float64; of another shape than `like` (B, ...) they are refused."""
    maps = again(image_inputs(subject, pixels), classes)
    actual = tuple(maps.shape) if isinstance(maps, Tensor) else type(maps).__name__
    check_that(actual == tuple(like.shape), f"maps of shape {tuple(like.shape)} when explained again", actual)
    return check_map(subject, maps).double().flatten(1)


def max_sensitivity(result: NeighbourResult) -> Tensor:
    """`max_j |S(x + d_j) - S(x)| / |S(x)|`, (B,); a map of zeros is divided by 1.

    Args:
        result: Result of neighbours that were explained again.
    """
    return result.change.amax(1) / torch.where(result.size > 0, result.size, 1.0)


@register_metric(
    "max-sensitivity",
    function=max_sensitivity,
    title="How much does the map change when the image changes by less than one can see?",
    paper="Yeh et al., NeurIPS 2019, arXiv:1901.09392",
    passes="50 (E + F)",
    traps="A map that ignores the input is perfectly stable. Where neighbours are predicted otherwise (`flipped`), the "
    "map should change. Values depend on radius, draws and units: those of other packages cannot be compared.",
    modalities=("image",),
    explains=True,
    presets={
        "default": NeighbourProtocol(),
        "captum": NeighbourProtocol(draws=10, units="model"),
        "quantus": NeighbourProtocol(0.2, 200, units="model"),
    },
)
class MaxSensitivity(PerImage):
    """Largest relative change (lower is better), and the share of neighbours that are predicted otherwise."""

    columns = ("value", "flipped")
    better = (False, None)
    protocol: NeighbourProtocol

    def of(self, case: Case) -> tuple[Any, ...]:
        again = case.needs("again", "a way to explain changed images (again=)")
        known = self.protocol.units == "model" or case.subject.batch.scale is not None
        advice = "; give it, or choose units='model'"
        check_that(known, "preprocess= with mean and std for a radius in raw colours", "none", advice)
        return (case.passes(self.protocol, again, case.explained),)

    def score(self, result: NeighbourResult) -> Tensor:
        return torch.stack([max_sensitivity(result), result.flipped.double().mean(1)], 1)
