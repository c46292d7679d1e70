"""Models with heads whose gates are far from 1, so that a gate that is lost must show."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mhex.heads import Scaffold
from support import hosts
from support.hosts import run as run
from support.models import CLASSES, FAMILIES

RESNETS = ("tv_resnet18", "timm_resnet18", "tv_bottlenecks", "timm_bottlenecks")
HOSTS = (*RESNETS, "timm_convnext", "hf_bert", "timm_vit", "hf_vit")


def host(name: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    """A model of one's own, in evaluation mode."""
    return hosts.host(name, dtype) if name in RESNETS else FAMILIES[name].fresh(dtype)


def inputs(name: str, count: int = 4, dtype: torch.dtype = torch.float32) -> Any:
    """A batch: images, or padded texts for BERT."""
    return hosts.inputs(name, count, dtype) if name in RESNETS else FAMILIES[name].inputs(count, dtype)


def with_heads(name: str, num_classes: int | None = None, active: bool = True, **options: Any) -> Scaffold:
    """A model with heads, in evaluation mode; `active` draws gate matrices that make gates differ by input."""
    dtype = options.pop("dtype", torch.float32)
    classes = num_classes or (hosts.CLASSES if name in RESNETS else CLASSES)
    scaffold = hosts.copied(lambda: host(name), ("with_heads", name), classes, **options)
    scaffold.model.to(dtype)
    if active:
        enliven_gates(scaffold)
    return scaffold


def called(name: str, **options: Any) -> Scaffold:
    """Like `with_heads`, of a model that was called once, so that the order of its blocks is known."""
    scaffold = with_heads(name, **options)
    run(scaffold.model, inputs(name, 1, options.get("dtype", torch.float32)))
    return scaffold


@torch.no_grad()
def enliven_gates(scaffold: Scaffold, scale: float = 2.0) -> None:
    generator = torch.Generator().manual_seed(5)
    for block in scaffold.heads.named_blocks().values():
        if block.w1 is not None:
            noise = torch.randn(block.w1.weight.shape, generator=generator)
            block.w1.weight.copy_(scale * noise / block.channels**0.5)


def part(batch: Any, rows: slice) -> Any:
    return batch[rows] if isinstance(batch, Tensor) else {k: v[rows] for k, v in batch.items()}


def close(a: Tensor, b: Tensor, tolerance: float = 1e-5) -> bool:
    """Equal to a relative tolerance of the largest value."""
    return bool((a - b).abs().max() <= tolerance * b.abs().max())
