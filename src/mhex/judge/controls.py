"""Control maps, which are made without the model: what a method must beat."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor

from mhex._settings import check_seed
from mhex.errors import ArgumentError, unknown_name
from mhex.perturb import Subject, generator_for

PREFIX = "control:"  # of their names among methods
RANDOM = f"{PREFIX}random"
_PURPOSE = 1001  # of random numbers, so that maps and ties of an image are drawn apart
_SPREAD = 4  # the side of an image over the spread of the centred map


def is_control(name: str) -> bool:
    """Whether a name of a table is that of a control map."""
    return name.startswith(PREFIX)


def random(subject: Subject, seed: int = 0) -> Tensor:
    """Uniform numbers from 0 to 1, from seed and id alone: (B, H, W), or (B, T) for texts, 0 at padding.

    For any model, the areas `A_LIF` and `A_MIF` of such maps are the same on average.
    """
    generators = [generator_for(seed, number, _PURPOSE) for number in subject.ids]
    if subject.batch.modality == "image":
        size = subject.batch.pixels.shape[-2:]
        return torch.stack([torch.rand(size, generator=generator) for generator in generators]).to(subject.device)
    real, _ = subject.batch.roles
    maps = torch.zeros(real.shape)
    for row, tokens, generator in zip(maps, real.cpu(), generators, strict=True):
        # As many as the text has, so that padding, which depends on the batch, changes nothing.
        row[tokens] = torch.rand(int(tokens.sum()), generator=generator)
    return maps.to(subject.device)


def gaussian(subject: Subject, seed: int = 0) -> Tensor:
    """`exp(-(u^2 + v^2) / 2)` with u and v the distances from the centre in quarters of the sides: (B, H, W).

    People put what they photograph in the middle. The seed is not used.
    """
    falling = []
    for side in subject.batch.pixels.shape[-2:]:
        distance = (torch.arange(side, device=subject.device) - (side - 1) / 2) * _SPREAD / side
        falling.append(torch.exp(-distance.square() / 2))
    return torch.outer(*falling).expand(subject.batch.size, -1, -1).contiguous()


def sobel(subject: Subject, seed: int = 0) -> Tensor:
    """Length of the gradient of the grey image by Sobel's filters, the border continued: (B, H, W).

    Grey is the mean of the channels, in colours before normalisation where it is known. The seed is not used.
    """
    pixels = subject.batch.pixels
    pixels = pixels.to(torch.promote_types(pixels.dtype, torch.float32))
    if subject.batch.scale is not None:
        pixels = pixels * subject.batch.scale[1].to(pixels).view(-1, 1, 1)  # an offset has no edges
    grey = F.pad(pixels.mean(1, keepdim=True), (1, 1, 1, 1), mode="replicate")
    across = grey.new_tensor([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]])
    with torch.autocast(grey.device.type, enabled=False):  # the caller's is for the model alone
        gradient = F.conv2d(grey, torch.stack([across, across.mT])[:, None])
    return gradient.square().sum(1).sqrt()


def first(subject: Subject, seed: int = 0) -> Tensor:
    """Scores of texts that fall from 1 at the first token to `1 / n` at the last of n: (B, T), 0 at padding.

    Many writers say first what a text is about. The seed is not used.
    """
    real, count, place = _places(subject)
    return ((count + 1 - place) / count).where(real, 0.0)


def last(subject: Subject, seed: int = 0) -> Tensor:
    """Scores of texts that rise from `1 / n` at the first token to 1 at the last of n: (B, T), 0 at padding.

    Reviews end with the verdict. The seed is not used.
    """
    real, count, place = _places(subject)
    return (place / count).where(real, 0.0)


def _places(subject: Subject) -> tuple[Tensor, Tensor, Tensor]:
    """Which tokens are no padding, bool (B, T), how many a text has, (B, 1), and the place of each from 1 on, (B, T).

    Padding does not count, on whichever side it stands, so that a text has the same map alone and in a batch.
    """
    real = subject.batch.roles[0].to(subject.device).bool()
    return real, real.sum(1, keepdim=True), real.long().cumsum(1)


@dataclass(frozen=True)
class Control:
    """A map that is made without the model."""

    name: str  # what users type
    title: str  # what sentences call it
    make: Callable[[Subject, int], Tensor]  # from samples and a seed to maps
    modalities: tuple[str, ...] = ("image",)  # what it is defined for


_ALL = (
    Control("random", "A random map", random, ("image", "text")),
    Control("gaussian", "A centred blob", gaussian),
    Control("sobel", "An edge map", sobel),
    Control("first", "A map of the first words", first, ("text",)),
    Control("last", "A map of the last words", last, ("text",)),
)
CONTROLS: Mapping[str, Control] = MappingProxyType({entry.name: entry for entry in _ALL})


def controls_of(modality: str) -> list[str]:
    """Names of the control maps of `"image"` or `"text"`, in the order of tables."""
    return [entry.name for entry in CONTROLS.values() if modality in entry.modalities]


def control(name: str, subject: Subject, seed: int = 0) -> Tensor:
    """Maps of one of `CONTROLS` by name, (B, H, W), or (B, T) for texts; the seed is that of `"random"`."""
    if name not in CONTROLS:
        raise unknown_name("control", name, CONTROLS)
    modality = subject.batch.modality
    if modality not in CONTROLS[name].modalities:
        kinds, choices = f"{CONTROLS[name].modalities[0]}s", ", ".join(controls_of(modality))
        raise ArgumentError(f"The control {name!r} needs {kinds}, but got {modality}s; choose {choices}.")
    return CONTROLS[name].make(subject, check_seed("seed", seed))
