"""The small models of the closed-form values: additive ones, whose right map is known."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from mhex.perturb import PerturbationSweep, Subject


class Additive(nn.Module):
    """Logits `factor sum_i a_i x_i - offset` of units in raster order, then a class whose logit is 0 if asked for."""

    def __init__(self, weights: Tensor, factor: float = 1.0, offset: float = 0.0, second: bool = False) -> None:
        super().__init__()
        self.weights = nn.Parameter(weights.double(), requires_grad=False)  # (K, N)
        self.factor, self.offset, self.second = factor, offset, second

    def forward(self, x: Tensor) -> Tensor:
        z = self.factor * x.flatten(1) @ self.weights.mT - self.offset
        return torch.cat([z, torch.zeros_like(z)], 1) if self.second else z


def lin4() -> tuple[Additive, Tensor, Tensor]:
    """Model, image and right map. Its second class is the negative of the first, so that logits are no pair of bits."""
    a = torch.tensor([[4.0, 3.0, 2.0, 1.0]])
    return Additive(torch.cat([a, -a])), torch.ones(1, 1, 2, 2).double(), a.view(1, 2, 2).double()


def bin4() -> tuple[Additive, Tensor, Tensor]:
    a = torch.tensor([[4.0, 3.0, 2.0, 1.0]])
    return Additive(a, math.log(2), second=True), torch.ones(1, 1, 2, 2).double(), a.view(1, 2, 2).double()


def fix10(bias: bool = True) -> tuple[Additive, Tensor, Tensor]:
    a = torch.arange(10.0, 0, -1)[None]
    return (
        Additive(a, offset=27.5 if bias else 0.0, second=True),
        torch.ones(1, 1, 2, 5).double(),
        a.view(1, 2, 5).double(),
    )


def two4() -> tuple[Additive, Tensor, Tensor]:
    """Two classes that read different pixels; maps of both, (1, 2, 2, 2)."""
    a = torch.tensor([[2.0, 1.0, 0.0, 0.0], [0.0, 0.0, 2.0, 1.0]])
    return Additive(a), torch.ones(1, 1, 2, 2).double(), a.view(1, 2, 2, 2).double()


def sweep_of(fixture: tuple[Additive, Tensor, Tensor], steps: int, label: int = 0, **options):
    """The sweep of a fixture, explained and labelled by class 0 unless said otherwise, ties in raster order."""
    model, x, saliency = fixture
    subject = Subject(model, x, label=torch.tensor([label]))
    runner = PerturbationSweep("zero", "pixel", steps, tie="stable", **options)
    return runner(subject, None, saliency, torch.tensor([0]))


def additive(side=8, classes=3, images=3, seed=0, **options):
    """Images, an additive model and its contributions, (images, classes, side, side)."""
    draw = torch.Generator().manual_seed(seed)
    weights = torch.randn(classes, side * side, generator=draw).double()
    x = torch.rand(images, 1, side, side, generator=draw).double()
    maps = weights.view(1, classes, side, side) * x
    return Subject(Additive(weights), x, **options), maps
