"""Generated tasks on a GPU: the same scenes as on the CPU, and their parts."""

from __future__ import annotations

import pytest
import torch

from mhex.lab.datasets.truth import SceneSet, load_truth
from mhex.lab.truth.task import all_tasks

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("name", [name for name, task in all_tasks().items() if task.kind == "image"])
def test_scenes_of_both_devices_are_the_same(name: str) -> None:
    here, there = load_truth(name, limit=3), load_truth(name, limit=3, device="cuda")
    assert isinstance(here, SceneSet)
    assert isinstance(there, SceneSet)
    assert here.labels.tolist() == there.labels.tolist()
    assert int((here.images.int() - there.images.int()).abs().max()) <= 1  # rounding
    for row in range(3):
        assert here.parts(row).signs == there.parts(row).signs
        first, second = here.parts(row).masks, there.parts(row).masks
        assert first is not None
        assert second is not None
        assert first.shape == second.shape
        assert float((first != second).double().mean()) < 1e-3  # an edge may round
        there.parts(row).remove([0])
