"""Networks small enough for every layer to be a dense matrix."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from support.models import CLASSES, enliven


class TinyCNN(nn.Module):
    """Batch norms, one with a negative factor, in-place ReLU, a skip connection, and two kinds of pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(1, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3)
        self.body, self.norm2 = nn.Conv2d(3, 3, 3, padding=1, groups=3), nn.BatchNorm2d(3)
        self.relu, self.pool = nn.ReLU(inplace=True), nn.MaxPool2d(2)
        self.head = nn.Linear(3, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.relu(self.norm(self.stem(x))))
        y = self.norm2(self.body(x))
        y += x
        return self.head(self.relu(y).mean((2, 3)))


class Tiny(nn.Module):
    """A Transformer of two blocks on patches of 2 x 2 pixels, norms before or after the branches."""

    def __init__(self, post: bool = False, gated: bool = False, classes: int = CLASSES) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, 6, 2, stride=2)
        self.class_token = nn.Parameter(torch.zeros(1, 1, 6))
        self.position_embed = nn.Parameter(torch.zeros(1, 5, 6))
        self.blocks = nn.ModuleList([TinyBlock(post, gated) for _ in range(2)])
        self.norm, self.head = nn.Identity() if post else nn.LayerNorm(6), nn.Linear(6, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).mT
        x = torch.cat([self.class_token.expand(len(x), -1, -1), x], 1) + self.position_embed
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


class TinyBlock(nn.Module):
    def __init__(self, post: bool, gated: bool) -> None:
        super().__init__()
        self.post, self.gated = post, gated
        self.norm1, self.norm2 = nn.LayerNorm(6), nn.LayerNorm(6)
        self.qkv, self.out = nn.Linear(6, 18), nn.Linear(6, 6)
        self.up, self.gate, self.down = nn.Linear(6, 5), nn.Linear(6, 5), nn.Linear(5, 6)

    def attend(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 3)).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    def feed(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x) if self.gated else F.gelu(self.up(x)))

    def forward(self, x: Tensor) -> Tensor:
        if self.post:
            x = self.norm1(x + self.attend(x))
            return self.norm2(x + self.feed(x))
        x = x + self.attend(self.norm1(x))
        return x + self.feed(self.norm2(x))


def tiny(kind: str, **options: Any) -> nn.Module:
    model = TinyCNN() if kind == "cnn" else Tiny(post=kind == "post", gated=kind == "gated", **options)
    return enliven(model).double().eval().requires_grad_(False)


def pictures(count: int = 2) -> Tensor:
    return torch.randn(count, 1, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
