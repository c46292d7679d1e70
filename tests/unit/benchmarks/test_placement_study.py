"""Variants are what their names say, runs are known by recipe and budget, and the page pairs images."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import heads_placement
from collaboration import published_sign
from heads_placement import METRICS, done
from mhex.heads import Correlation
from placement_page import page
from placement_studies import BASE, FITTED, PLAIN_NAME, TRAINED, VARIANTS, Budget, folder_of, recipe_of


def test_variants_change_the_one_thing_that_they_name() -> None:
    base = recipe_of(BASE, 1, Budget())
    assert base.heads is not None
    assert (base.heads.where, base.heads.preset, base.heads.mode, base.heads.classifier) == (
        "all",
        "paper",
        "finetune",
        True,
    )
    assert (base.training.epochs, base.data.test, base.data.validation) == (12, "val", 0.0)
    for name, changes in TRAINED.items():
        heads = recipe_of(name, 1, Budget()).heads
        different = {key: value for key, value in heads.model_dump().items() if value != base.heads.model_dump()[key]}
        wanted = {key: tuple(one) if isinstance(one, list) else one for key, one in changes.items()}
        assert different == ({} if name == BASE else wanted)
    assert recipe_of(PLAIN_NAME, 1, Budget()).heads is None


def test_folders_and_recipes_of_all_runs_differ() -> None:
    folders = {folder_of(Path("runs"), variant, seed) for variant in VARIANTS for seed in (1, 2)}
    assert len(folders) == 2 * len(VARIANTS)
    assert len({recipe_of(variant, seed, Budget()).digest() for variant in VARIANTS for seed in (1, 2)}) == len(folders)


def test_a_run_counts_as_done_for_its_own_budget_alone(tmp_path: Path) -> None:
    budget = Budget(epochs=2)
    folder = folder_of(tmp_path, BASE, 1)
    folder.mkdir()
    told = {"digest": recipe_of(BASE, 1, budget).digest(), "budget": asdict(budget), "device": "`cpu`", "rows": []}
    (folder / heads_placement.ROWS).write_text(json.dumps(told))
    assert done(tmp_path, BASE, 1, budget) is not None
    assert done(tmp_path, BASE, 1, Budget(epochs=3)) is None
    assert done(tmp_path, BASE, 1, Budget(epochs=2, images=9)) is None
    assert done(tmp_path, BASE, 2, budget) is None


def row(variant: str, kind: str, shift: float) -> dict[str, Any]:
    values = {metric: [0.1 + shift, 0.5 + shift, 0.3 + shift] for metric in METRICS}
    maps = {"mhex": values, "mhex (preset=table3)": values, "gradcam": values}
    return {
        "variant": variant,
        "kind": kind,
        "seed": 1,
        "accuracy": 0.9,
        "seconds": 1,
        "heads": [0.5, 0.6],
        "maps": maps,
    }


def test_the_page_pairs_images_with_those_of_the_base() -> None:
    rows = [row(BASE, "trained", 0.0), row("last three", "trained", 0.2), row(BASE, "fitted", 0.0)]
    rows += [row("first three", "fitted", -0.1), {"variant": PLAIN_NAME, "kind": "trained", "accuracy": 0.8}]
    text = page([{"device": "`cpu`", "rows": rows}], Budget(images=3))
    assert "| last three | 90.00 (90.00) | 0.500 (0.300 to 0.700)" in text
    assert "0.200 (0.200 to 0.200) | 0.200 (0.200 to 0.200) |" in text
    assert "SAD of trained heads beside *all blocks*: higher for last three (+0.200). Lower for none." in text
    assert "EAD of closed-form heads beside *all blocks*: higher for none. Lower for first three (-0.100)." in text
    assert "| plain network, without heads | 80.00 (80.00)" in text


def test_closed_form_heads_have_the_same_placements() -> None:
    assert set(FITTED) > {name for name in TRAINED if "where" in TRAINED[name]}


@pytest.mark.parametrize(
    ("variable", "r", "low", "high", "said"),
    [
        ("SAD", 0.1, 0.05, 0.15, "as published"),
        ("SAD", -0.1, -0.15, -0.05, "the opposite"),
        ("p_orig", -0.1, -0.15, -0.05, "as published"),
        ("p_orig", 0.1, -0.05, 0.25, "not told from 0"),
    ],
)
def test_signs_are_compared_with_the_published_ones(
    variable: str, r: float, low: float, high: float, said: str
) -> None:
    assert published_sign(Correlation("layer4.0", variable, r, 0.01, 99, low, high)) == said
