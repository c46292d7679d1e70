"""Thousands of explanations in one process take no more memory than the first ones."""

from __future__ import annotations

import gc
import os
import resource
import subprocess
import sys
import weakref
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


def _growth(make: str, method: str) -> int:
    """Bytes that this process grows by in the last 4,000 of 5,000 explanations."""
    model, x = {"cnn": _cnn, "vit": _vit}[make]()
    for _ in range(1000):
        mhex.explain(model, x, method)
    before = _resident()
    for _ in range(4000):
        mhex.explain(model, x, method)
    return _resident() - before


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="other systems tell memory in other ways")
@pytest.mark.parametrize(("make", "method"), [("cnn", "gradcam"), ("vit", "gae")])
def test_five_thousand_explanations(make: str, method: str) -> None:
    """In a process of their own: from one that holds gigabytes, the system takes pages away and gives them back."""
    paths = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]))
    command = [sys.executable, __file__, make, method]
    result = subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) < 2**20


def test_nothing_keeps_an_explained_model() -> None:
    model, x = _cnn()
    for method in ("gradcam", "lrp", "occlusion"):
        mhex.explain(model, x, method)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(_growth(*sys.argv[1:]))
