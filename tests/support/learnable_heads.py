"""A tiny residual network with data that its heads can learn, and what fitted heads see."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mhex import Scaffold
from mhex.heads.predictors import watched
from support.hosts import copied


class Unit(nn.Module):
    """A residual unit with a batch norm, so that training mode would show."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        """The unit's output."""
        return torch.relu(self.norm(self.conv(x)) + x)


class Net(nn.Module):
    """Two units and a classifier with dropout before it."""

    def __init__(self, classes: int = 3, channels: int = 12) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.first, self.second = Unit(channels), Unit(channels)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        return self.head(self.drop(self.second(self.first(self.stem(x))).mean((2, 3))))


def probe(classes: int = 3, dtype: torch.dtype = torch.float64, seed: int = 0, **options: Any) -> Scaffold:
    """A random network with heads that do not change it."""

    def build() -> nn.Module:
        torch.manual_seed(seed)
        return Net(classes).to(dtype).eval()

    return copied(build, ("probe", dtype, seed), classes, **{"preset": "probe", **options})


def pictures(rows: int, classes: int = 3, dtype: torch.dtype = torch.float64, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Noise whose colours depend on the class, classes in turn: (N, 3, 6, 6) and (N,)."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(rows) % classes
    colours = 2 * torch.randn(classes, 3, 1, 1, generator=torch.Generator().manual_seed(0))
    x = torch.randn(rows, 3, 6, 6, generator=generator) + colours[y]
    return x.to(dtype), y


def features(scaffold: Scaffold, x: Any) -> dict[str, Tensor]:
    """What each head's matrix multiplies, (N, C)."""
    with watched(scaffold.model) as run:
        return {name: block.features.double() for name, block in run(x).blocks.items()}
