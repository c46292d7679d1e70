"""Agreement with Quantus where it is right; where it is not, ours against the definition."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from mhex.metrics import get_metric
from mhex.metrics.case import Case
from mhex.metrics.compactness import entropy, gini
from mhex.perturb import PerturbationSweep, Subject


@pytest.fixture(scope="module")
def quantus():
    if "numpy" in sys.modules and not hasattr(np, "trapz"):
        np.trapz = np.trapezoid  # Quantus 0.6 calls what numpy 2.4 no longer has
    return pytest.importorskip("quantus", reason="quantus is not installed")


@pytest.fixture(scope="module")
def setting() -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    """A model, grey images whose least value is 0, maps and predicted classes."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 3)).eval()
    x = torch.rand(3, 1, 8, 8)
    x[:, 0, 0, 0] = 0
    return model, x, torch.randn(3, 8, 8), model(x).argmax(1)


def ask(metric, setting, **masks):
    model, x, maps, classes = setting
    given = {"x_batch": x.numpy(), "y_batch": classes.numpy(), "a_batch": maps[:, None].numpy(), **masks}
    return metric(model=model, device="cpu", channel_first=True, **given)


def test_pixel_flipping(quantus, setting):
    """Of grey images: of colours, Quantus ranks and flips single channels."""
    model, x, maps, classes = setting
    settings = {"features_in_step": 4, "perturb_baseline": "black", "normalise": False, "disable_warnings": True}
    theirs = torch.tensor(np.array(ask(quantus.PixelFlipping(**settings), setting)))
    ours = PerturbationSweep("zero", "pixel", 16)(Subject(model, x), None, maps, classes).curve("mif")
    assert torch.allclose(ours[:, 1:].float(), theirs.float(), atol=1e-6)


def test_sparseness_and_complexity(quantus, setting):
    plain = {"normalise": False, "abs": True, "disable_warnings": True}
    maps = setting[2]
    theirs = torch.tensor(np.array(ask(quantus.Sparseness(**plain), setting)))
    assert torch.allclose(gini(maps.double()), theirs.double(), atol=1e-6)
    theirs = torch.tensor(np.array(ask(quantus.Complexity(**plain), setting)))
    assert torch.allclose(entropy(maps.double()) * math.log(maps[0].numel()), theirs.double(), atol=1e-5)


def test_a_mask_without_an_object_is_no_hit(quantus, setting):
    """Quantus counts it as one."""
    masks = torch.zeros(3, 8, 8)
    masks[:2, 2:6, 2:6] = 1
    settings = {"normalise": False, "abs": False, "disable_warnings": True}
    theirs = ask(quantus.PointingGame(**settings), setting, s_batch=masks[:, None].numpy())
    model, x, maps, classes = setting
    metric = get_metric("pointing-game").metric()
    metric.update(*metric.of(Case(Subject(model, x), maps, classes, mask=masks.long())))
    _, rows = metric.rows()
    assert [float(value) for value in theirs[:2]] == rows[:2, 0].tolist()
    assert bool(theirs[2])
    assert rows[2].isnan().all()
    assert metric.compute()["n_skipped"] == 1
