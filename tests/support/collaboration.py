"""Models with heads in float64, and the gradients of whole matrices that the closed form does without."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mhex
from support.hosts import copied
from support.learnable_heads import Unit
from support.models import call, enliven

CLASSES = 5


class Net(nn.Module):
    """Three residual units and a classifier."""

    def __init__(self, classes: int = CLASSES, channels: int = 6, units: int = 3) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.units = nn.Sequential(*(Unit(channels) for _ in range(units)))
        self.head = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.units(F.relu(self.stem(x))).mean((2, 3)))


def with_heads(model: nn.Module, classes: int = CLASSES, **settings: Any) -> mhex.Scaffold:
    """Heads on a model, all with lively weights in float64; batch norms have seen something."""
    settings = {"preset": "paper", **settings}
    if type(model) is Net:
        scaffold = copied(lambda: model, (Net, len(model.units), model.head.out_features), classes, **settings)
        model = scaffold.model
    else:
        scaffold = mhex.attach(model, classes, **settings)
    enliven(model)
    generator = torch.Generator().manual_seed(3)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.copy_(0.1 * torch.randn(module.num_features, generator=generator))
            module.running_var.copy_(0.5 + torch.rand(module.num_features, generator=generator))
    model.double().eval()
    return scaffold


@torch.no_grad()
def calm(scaffold: mhex.Scaffold, inputs: Any) -> None:
    """Heads that are not certain, so that softmax minus one, in the gradient of a cross-entropy, keeps its digits."""
    call(scaffold.model, inputs)
    for name, y in scaffold.head_logits.items():  # W2 does not change what flows on, so one pass is enough
        scaffold.heads[name].w2.weight.mul_(2 / y.abs().max())


def sample_loss(logits: Tensor, label: Tensor, binary: bool = False) -> Tensor:
    """Loss of one sample, logits (1, n)."""
    if binary:
        return F.binary_cross_entropy_with_logits(logits, label.to(logits.dtype), reduction="sum")
    return F.cross_entropy(logits, label if label.dim() == 1 else label.to(logits.dtype))


def matrix_gradients(scaffold: mhex.Scaffold, sample: Any, label: Tensor, binary: bool = False) -> list[Any]:
    """Of one sample, by two backward passes per block: the gradients (C, C) of both losses by `W1`, block by block."""
    call(scaffold.model, sample)
    losses = [sample_loss(y, label, binary) for y in scaffold.head_logits.values()]
    found = []
    for number, name in enumerate(scaffold.names[:-1]):
        w1 = scaffold.heads[name].w1.weight
        own, after = (torch.autograd.grad(losses[number + i], w1, retain_graph=True)[0] for i in (0, 1))
        found.append((own, after))
    return found


def matrix_cosine(a: Tensor, b: Tensor) -> Tensor:
    """Cosine of two matrices as lists of numbers."""
    return (a * b).sum() / (a.square().sum().sqrt() * b.square().sum().sqrt())


def matrix_cosines(scaffold: mhex.Scaffold, samples: list[Any], labels: Tensor, binary: bool = False) -> Tensor:
    """Cosines (N, L - 1) of the gradients of whole matrices, sample by sample."""
    rows = []
    for number, sample in enumerate(samples):
        pairs = matrix_gradients(scaffold, sample, labels[number : number + 1], binary)
        rows.append(torch.stack([matrix_cosine(own, after) for own, after in pairs]))
    return torch.stack(rows)
