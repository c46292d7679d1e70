"""Models with heads whose gates are far from 1, so that a gate that is lost must show."""

from __future__ import annotations

import copy
import functools
import warnings
from typing import Any

import pytest
import torch
from tests.support.models import CLASSES, FAMILIES
from torch import Tensor, nn

import mhex
from mhex.errors import MhexWarning
from mhex.heads import Scaffold

RESNETS = ("tv_resnet18", "timm_resnet18", "tv_resnet50", "timm_resnet50")
HOSTS = (*RESNETS, "timm_convnext", "hf_bert", "timm_vit", "hf_vit")


def marked(*names: str) -> list[Any]:
    """Parameters of a test; the large models among them are slow."""
    return [pytest.param(name, marks=pytest.mark.slow) if "50" in name else name for name in names]


@functools.cache
def _resnet(name: str) -> nn.Module:
    import timm
    import torchvision

    package, kind = name.split("_")
    build = getattr(torchvision.models, kind) if package == "tv" else functools.partial(timm.create_model, kind)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = build(num_classes=CLASSES)
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = None  # statistics of the one pass below, so that activations stay near 1
                nn.init.normal_(module.weight, 1, 0.2)
                nn.init.normal_(module.bias, 0, 0.2)
        model.train()(torch.randn(8, 3, 64, 64))
    return model.eval()


def host(name: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    """A model of one's own, in evaluation mode."""
    return copy.deepcopy(_resnet(name)).to(dtype) if name in RESNETS else FAMILIES[name].fresh(dtype)


def inputs(name: str, count: int = 4, dtype: torch.dtype = torch.float32) -> Any:
    """A batch: images of 48 pixels for the ResNets; padded texts for BERT."""
    if name in RESNETS:
        return torch.randn(count, 3, 48, 48, generator=torch.Generator().manual_seed(3)).to(dtype)
    return FAMILIES[name].inputs(count, dtype)


def with_heads(name: str, num_classes: int = CLASSES, active: bool = True, **options: Any) -> Scaffold:
    """A model with heads, in evaluation mode; `active` draws gate matrices that make gates differ by input."""
    model = host(name, options.pop("dtype", torch.float32))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MhexWarning)  # heads larger than their host are fine here
        scaffold = mhex.attach(model, num_classes, **options)
    if active:
        enliven_gates(scaffold)
    return scaffold


@torch.no_grad()
def enliven_gates(scaffold: Scaffold, scale: float = 2.0) -> None:
    generator = torch.Generator().manual_seed(5)
    for block in scaffold.heads.named_blocks().values():
        if block.w1 is not None:
            noise = torch.randn(block.w1.weight.shape, generator=generator)
            block.w1.weight.copy_(scale * noise / block.channels**0.5)


def run(model: nn.Module, batch: Any) -> Tensor:
    """Class scores of a plain call."""
    with torch.no_grad():
        output = model(batch) if isinstance(batch, Tensor) else model(**batch)
    return output if isinstance(output, Tensor) else output.logits


def part(batch: Any, rows: slice) -> Any:
    return batch[rows] if isinstance(batch, Tensor) else {k: v[rows] for k, v in batch.items()}


def close(a: Tensor, b: Tensor, tolerance: float = 1e-5) -> bool:
    """Equal to a relative tolerance of the largest value."""
    return bool((a - b).abs().max() <= tolerance * b.abs().max())
