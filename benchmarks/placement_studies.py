"""What heads_placement.py trains and fits: placements, gates and losses, one changed at a time."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mhex.lab.config.recipe import TrainingRecipe, find_recipe, read_recipe

RECIPE, PLAIN = "blood-mhex-resnet18", "blood-resnet18-narrow"
BASE = "all blocks"
# The two placements that have no name of their own are lists of units.
PLACEMENTS: dict[str, Any] = {
    BASE: "all",
    "first of each stage but the first (`downsample`)": "downsample",
    "last of each stage": ["layer1.1", "layer2.1", "layer3.1", "layer4.1"],
    "first three": "first3",
    "last three": ["layer3.1", "layer4.0", "layer4.1"],
}
# Of the recipe: every placement has gates `paper` and the loss `finetune`.
OTHERS: dict[str, dict[str, Any]] = {
    "gate `identity`": {"preset": "identity"},
    "gate `warmup`": {"preset": "warmup"},
    "no gate (`head_only`)": {"coupling": "head_only"},
    "gate apart (`separate`)": {"coupling": "separate"},
    "loss `pretrain`": {"mode": "pretrain"},
    "loss `finetune`, without classifier": {"classifier": False},
}
TRAINED: dict[str, dict[str, Any]] = {
    **{name: {"where": where} for name, where in PLACEMENTS.items()},
    **{name: dict(changes) for name, changes in OTHERS.items()},
}
PLAIN_NAME = "plain"
VARIANTS = (*TRAINED, PLAIN_NAME)
# Heads in closed form on the plain network: where, and where the ReLU sits.
FITTED: dict[str, dict[str, Any]] = {
    **{name: {"where": where, "relu": "pre"} for name, where in PLACEMENTS.items()},
    'all blocks, `relu="post"`': {"where": "all", "relu": "post"},
}


@dataclass(frozen=True)
class Budget:
    """How long and on how much every network learns, and how it is judged.

    Attributes:
        epochs: Of each run.
        images: Validation images that maps are judged on.
        limit: Images of each split that is read; None for all.
        seeds: A run each.
    """

    epochs: int = 12
    images: int = 256
    limit: int | None = None
    seeds: tuple[int, ...] = field(default=(1, 2))


def recipe_of(variant: str, seed: int, budget: Budget) -> TrainingRecipe:
    """The recipe of one run. Nothing is chosen by the validation split, which is what everything here is judged on."""
    changes = [f"seed={seed}", f"train.epochs={budget.epochs}", "data.validation=0.0", "data.test=val"]
    if budget.limit is not None:
        changes.append(f"data.limit={budget.limit}")
    if variant == PLAIN_NAME:
        return read_recipe(find_recipe(PLAIN), changes)
    changes += [f"heads.{key}={json.dumps(value)}" for key, value in TRAINED[variant].items()]
    return read_recipe(find_recipe(RECIPE), changes)


def folder_of(runs: Path, variant: str, seed: int) -> Path:
    """Folder of a run, named by the variant's place in the list and its words."""
    words = "".join(c if c.isalnum() else "-" for c in variant.lower().replace("`", ""))
    return runs / f"{'-'.join(filter(None, words.split('-')))}-{seed}"
