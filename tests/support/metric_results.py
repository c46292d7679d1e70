"""Metrics that were given the sweeps of a small model."""

import pytest
import torch

from mhex.metrics.fidelity import Fidelity
from mhex.perturb import PerturbationSweep, Subject
from support.additive_models import Additive

ZERO = {"reference": "zero", "steps": 4}
SWEEP = PerturbationSweep("zero", "pixel", 4)


def results(batches, count=12):
    """Sweeps of an additive model on random images, cut into batches of so many."""
    random = torch.Generator().manual_seed(3)
    model = Additive(torch.randn(3, 16, generator=random))
    x, maps = torch.randn(2, count, 4, 4, generator=random, dtype=torch.float64)
    label = torch.randint(0, 3, (count,), generator=random)
    found = []
    for start in range(0, count, batches):
        cut = slice(start, start + batches)
        ids = range(100 + start, 100 + start + len(x[cut]))
        found.append(SWEEP(Subject(model, x[cut, None], label[cut], ids), None, maps[cut]))
    return found


def filled(batches=5, make=Fidelity, **options):
    metric = make(**ZERO, **options)
    for result in results(batches):
        metric.update(result)
    return metric


def same(first, second):
    assert first.keys() == second.keys()
    for name, value in first.items():
        if isinstance(value, dict):
            same(value, second[name])
        else:
            assert (
                value == pytest.approx(second[name], nan_ok=True) if isinstance(value, float) else value == second[name]
            )
