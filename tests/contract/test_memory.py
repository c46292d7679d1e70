"""Thousands of explanations in one process take no more memory than the first ones."""

from __future__ import annotations

import gc
import resource
import sys
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import mhex
from support.models import FAMILIES


def _resident() -> int:
    """Bytes of memory that the process has."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()


def _cnn() -> tuple[nn.Module, Tensor]:
    layers = (nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
    return nn.Sequential(*layers).eval(), torch.randn(1, 3, 8, 8)


def _vit() -> tuple[nn.Module, Tensor]:
    family = FAMILIES["timm_vit"]
    return family.fresh(torch.float32), family.inputs(1, torch.float32)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="other systems tell memory in other ways")
@pytest.mark.parametrize(("make", "method"), [(_cnn, "gradcam"), (_vit, "gae")])
def test_five_thousand_explanations(make: Callable[[], tuple[nn.Module, Tensor]], method: str) -> None:
    model, x = make()
    for _ in range(1000):
        mhex.explain(model, x, method)
    before = _resident()
    for _ in range(4000):
        mhex.explain(model, x, method)
    assert _resident() - before < 2**20


def test_nothing_keeps_an_explained_model() -> None:
    model, x = _cnn()
    for method in ("gradcam", "lrp", "occlusion"):
        mhex.explain(model, x, method)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
