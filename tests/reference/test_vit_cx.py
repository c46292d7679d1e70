"""ViT-CX: the closed forms and identities of its specification."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mhex
from mhex.errors import ArgumentError
from support.cases import assert_same
from support.formulas import view
from support.formulas_tokens import channel_maps, clusters, look, masks, vit_cx_scores
from support.models import CLASSES, FAMILIES, call

cx: Any = __import__("mhex.methods.vit_cx", fromlist=["vit_cx"])
FAMILY = FAMILIES["timm_vit"]


def scores(model: nn.Module | None = None, images: Tensor | None = None, **options: Any) -> Tensor:
    model, images = FAMILY.model() if model is None else model, FAMILY.inputs(1) if images is None else images
    return mhex.explain(model, images, method="vit-cx", target=options.pop("target", 2), **options).scores


@pytest.mark.parametrize("options", [{"distance": 0.1}, {"distance": 0.15, "noise": 0}, {"distance": 0.2, "seed": 3}])
def test_without_a_limit_of_masks(options: dict[str, Any]) -> None:
    seen = view(FAMILY, FAMILY.model(), FAMILY.inputs(1))
    wanted = vit_cx_scores(seen, 2, **options).clamp_min(0)
    assert_same(scores(**options)[0], wanted, "vit-cx", 1e-10)


def test_clusters_are_those_of_scikit_learn() -> None:
    cluster = pytest.importorskip("sklearn.cluster")
    seen = view(FAMILY, FAMILY.model(), FAMILY.inputs(1))
    maps = channel_maps(seen)
    flat = torch.stack([m.flatten() for m in maps])
    flat = flat / flat.norm(dim=1, keepdim=True)
    rows, columns = FAMILY.grid
    tokens = look(seen).tokens[-1][0, FAMILY.prefix :].detach().mT.reshape(-1, rows, columns)
    for distance in (0.05, 0.1, 0.2):
        found = cluster.AgglomerativeClustering(
            n_clusters=None, distance_threshold=distance, metric="precomputed", linkage="complete"
        ).fit((1 - flat @ flat.T).numpy())
        groups = {tuple(sorted(group)) for group in clusters(maps, distance, None)}
        assert groups == {
            tuple(i for i, label in enumerate(found.labels_) if label == one) for one in set(found.labels_)
        }
        assert len(cx._masks(tokens, FAMILY.size, distance, None)) == len(groups)


def test_a_mask_of_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """It hides nothing, so there is no noise: the probability of the class, everywhere."""
    monkeypatch.setattr(cx, "_on_image", lambda grid, size: torch.ones(len(grid), *size).double())
    got = scores(images=FAMILY.inputs(3), distance=2.0)
    wanted = call(FAMILY.model(), FAMILY.inputs(3)).softmax(1)[:, 2].detach()
    assert_same(got, wanted[:, None, None].expand_as(got), "vit-cx", 1e-12)


def test_one_cluster_gives_one_value() -> None:
    """One mask: its effect at all pixels that it shows, whatever its shade there; 0 where it shows nothing."""
    got = scores(distance=2.0)[0]
    seen = view(FAMILY, FAMILY.model(), FAMILY.inputs(1))
    (mask,) = masks(seen, distance=2.0)
    visible = mask > 1e-9  # at its darkest pixels it is 0 or a rounding error
    assert int(visible.sum()) > 0.9 * got.numel()
    wanted = vit_cx_scores(seen, 2, distance=2.0)[visible]
    assert_same(got[visible], wanted, "vit-cx", 1e-11)
    assert float(wanted.max() - wanted.min()) < 1e-12
    assert float(got[~visible].min()) == 0


@pytest.mark.parametrize("name", ["timm_vit", "timm_avg"])
def test_model_that_ignores_its_input(name: str) -> None:
    """Every effect is p, so the map is p / K."""
    family = FAMILIES[name]
    model = family.fresh()
    model.head.weight.data.zero_()
    p = model.head.bias.detach().softmax(0)[2]
    for most in (2, 5):
        got = scores(model, family.inputs(2), max_masks=most)
        assert_same(got, torch.full_like(got, float(p) / most), "vit-cx", 1e-12)


def test_scores_below_zero_are_cut_off() -> None:
    """Strong noise alone may raise the probability of a class by more than the image has."""
    seen = view(FAMILY, FAMILY.model(), FAMILY.inputs(1))
    options = {"distance": 0.15, "noise": 3.0}
    wanted = torch.stack([vit_cx_scores(seen, target, **options) for target in range(CLASSES)])
    assert float(wanted.min()) < 0 < float(wanted.max())
    got = scores(target=list(range(CLASSES)), **options)[0]
    assert_same(got, wanted.clamp_min(0), "vit-cx", 1e-10)


def test_constant_and_repeated_channels() -> None:
    grid = torch.randn(6, 4, 5, dtype=torch.float64)
    alone = cx._masks(grid, (32, 40), 0.01, None)
    assert len(alone) == 6
    twice = cx._masks(torch.cat([grid, 3 * grid[2:3] + 1]), (32, 40), 0.01, None)
    assert len(twice) == 6, "a channel that says the same is in the same cluster"
    constant = cx._masks(torch.cat([torch.full((1, 4, 5), 7.0).double(), grid]), (32, 40), 0.01, None)
    assert_same(constant, alone, "vit-cx", 1e-12)
    assert len(cx._masks(torch.ones(3, 4, 5), (32, 40), 0.01, None)) == 0


def test_nothing_varies() -> None:
    """A constant image without position embedding: no channel tells patches apart, and there is no map."""
    model = FAMILY.fresh()
    model.pos_embed.data.zero_()
    got = scores(model, torch.full((2, 3, 32, 48), 0.5, dtype=torch.float64))
    assert got.shape == (2, 32, 48)
    assert bool(torch.isfinite(got).all())
    assert len(cx._masks(torch.full((6, 4, 5), 0.3).double(), (32, 40), 0.01, None)) == 0


def test_masks_are_capped() -> None:
    for most in (1, 4, 7):
        grids = cx._masks(torch.randn(20, 4, 5).double(), (32, 40), 0.01, most)
        assert len(grids) == most
        e = mhex.explain(FAMILY.model(), FAMILY.inputs(1), method="vit-cx", max_masks=most)
        assert e.cost["forwards"] == 1 + 2 * most


def test_batch_size_changes_nothing() -> None:
    """Images of a batch, masks and targets are run in parts of any size."""
    whole = scores(images=FAMILY.inputs(3), target=[0, 4], max_masks=7, batch_size=64)
    for size in (1, 3, 8):
        part = scores(images=FAMILY.inputs(3), target=[0, 4], max_masks=7, batch_size=size)
        assert_same(part, whole, "vit-cx", 1e-11)


def test_a_seed_repeats_and_decides_the_noise_alone() -> None:
    first, again, other = (scores(max_masks=4, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert float((first - other).abs().max()) > 1e-4 * float(first.max())
    assert torch.equal(scores(max_masks=4, noise=0, seed=1), scores(max_masks=4, noise=0, seed=2))


@pytest.mark.parametrize(
    "options",
    [{"distance": -0.1}, {"distance": 2.5}, {"noise": -1}, {"max_masks": 0}, {"batch_size": 0}, {"noise": True}],
)
def test_wrong_options_of_vit_cx_are_named(options: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=f"Expected {next(iter(options))}"):
        scores(**options)


def test_texts_are_refused() -> None:
    family = FAMILIES["hf_bert"]
    with pytest.raises(mhex.errors.UnsupportedModelError, match="not defined for text"):
        mhex.explain(family.model(), family.inputs(1), method="vit-cx")
