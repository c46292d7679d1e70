"""Residual units of users' own, in nets of one stem and one classifier."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

WIDTH = 8
CLASSES = 4


class Unit(nn.Module):
    """The plain residual unit."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.body = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Any:
        return x + self.body(x)


class Net(nn.Module):
    """Units in a row, on maps (B, 8, H, W)."""

    def __init__(self, *units: nn.Module) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, WIDTH, 1)
        self.units = nn.ModuleList(units)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Any:
        x = self.stem(x)
        for unit in self.units:
            x = unit(x)
        return self.head(x.mean((2, 3)))


class TextNet(nn.Module):
    """One block on tokens (B, T, 8), given a mask by its place."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.embedding, self.block, self.head = nn.Embedding(50, WIDTH), block, nn.Linear(WIDTH, CLASSES)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **more: Any) -> Tensor:
        x = self.embedding(input_ids)
        x = self.block(x, **more) if attention_mask is None else self.block(x, attention_mask, **more)
        logits: Tensor = self.head(x[:, 0])
        return logits


def images(count: int = 2, side: int = 6) -> Tensor:
    """A batch of images."""
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(0))
