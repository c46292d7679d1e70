"""The joined attention is the one that GradToken multiplies by, and the depth series reads the right rows."""

from __future__ import annotations

import pytest
import timm
import torch

import mhex
from gradtoken_depth import series
from gradtoken_figures import joined, likeness, stays
from mhex.judge.tables import Cell


@pytest.fixture(scope="module")
def bundle() -> mhex.Bundle:
    torch.manual_seed(0)
    arguments = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 4, "num_heads": 3, "num_classes": 5}
    return mhex.Bundle("tiny", timm.create_model("vit_tiny_patch16_224", **arguments).eval())


def scaled(maps: torch.Tensor) -> torch.Tensor:
    flat = maps.flatten(1).double()
    return flat / flat.abs().amax(1, keepdim=True)


@pytest.mark.parametrize("name", ["average", "rollout"])
def test_rows_are_what_the_method_multiplies_by(bundle: mhex.Bundle, name: str) -> None:
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    joint = joined(bundle, x)[name]
    assert joint.grid == (4, 4)
    options = {"head_integration": "average", "target": 0}  # without ReLU everything is linear
    alone = mhex.explain(bundle, x, method="gradtoken", aggregation="none", **options).scores.flatten(1)
    by_row = mhex.explain(bundle, x, method="gradtoken", aggregation=name, propagation="elementwise", **options).scores
    assert torch.allclose(scaled(by_row), scaled(joint.readout * alone), atol=1e-4)
    by_matrix = mhex.explain(bundle, x, method="gradtoken", aggregation=name, **options).scores
    assert torch.allclose(scaled(by_matrix), scaled(joint.spread @ alone[..., None]), atol=1e-4)


def test_likeness_and_own_share_of_known_matrices() -> None:
    equal, own = torch.full((1, 4, 4), 0.25), torch.eye(4)[None]
    assert likeness(equal).tolist() == pytest.approx([1.0])
    assert likeness(own).tolist() == pytest.approx([0.0])
    assert stays(equal).tolist() == pytest.approx([0.25])
    assert stays(own).tolist() == pytest.approx([1.0])


def cell(method: str, value: float, metric: str = "segmentation:gt", output: str = "miou") -> Cell:
    return Cell(method, metric, output, value, value - 0.1, value + 0.1, 9, 0, True)


def test_the_series_is_ordered_by_block() -> None:
    cells = [cell("gradtoken", 1.0), cell("gradtoken (start_block=3)", 3.0), cell("gradtoken (aggregation=none)", 0.5)]
    cells += [cell("gradtoken (center_keys=True)", 9.0), cell("gradtoken", 8.0, metric="perturbation-auc:gt")]
    found = series(cells)
    assert {block: one.value for block, one in found["miou"].items()} == {1: 1.0, 3: 3.0, 0: 0.5}
    assert found["pacc"] == {}
