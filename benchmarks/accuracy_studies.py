"""What mhex_accuracy.py trains: data sets, ways to train, seeds."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from mhex.lab.config.recipe import TrainingRecipe, find_recipe, read_recipe

HEADS = {
    "plain": {},
    "pretrain": {"mode": "pretrain", "classifier": False},
    "finetune": {"mode": "finetune", "classifier": False},
    "finetune + classifier": {"mode": "finetune", "classifier": True},
}
CLOSED = "closed-form heads"


@dataclass(frozen=True)
class Study:
    """One data set.

    Attributes:
        title: For the page.
        recipe: Packaged recipe of the plain network.
        variants: Ways to train it.
        preset: Of the gates: `paper` from scratch, `identity` from trained weights.
        images: Of the test split.
        changes: Of the recipe.
        seeds: One run each.
    """

    title: str
    recipe: str
    variants: tuple[str, ...]
    preset: str
    images: int
    changes: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (1, 2, 3)


STUDIES = {
    "blood": Study("Blood cells, ResNet-18, 112 px", "blood-resnet18", tuple(HEADS), "paper", 2557),
    "pneumonia": Study(
        "Pneumonia X-rays, ResNet-18, 112 px", "pneumonia-resnet18", tuple(HEADS), "paper", 624, ("data.side=112",)
    ),
    "pets": Study(
        "Pets, ResNet-18, 128 px, 60 epochs from one CIFAR-10 start",
        "pets-resnet18",
        ("plain", "finetune", "finetune + classifier"),
        "identity",
        2454,
    ),
    "ag_news": Study(
        "AG News, MiniLM, fine-tuned", "agnews-minilm", ("plain", "finetune", "finetune + classifier"), "identity", 858
    ),
}


def recipe_of(study: Study, variant: str, seed: int) -> TrainingRecipe:
    """The recipe of one run: the same data, network, epochs and seed, with or without heads."""
    heads = [f"heads.{key}={json.dumps(value)}" for key, value in HEADS[variant].items()]
    preset = [f"heads.preset={study.preset}"] if heads else []
    return read_recipe(find_recipe(study.recipe), [*study.changes, *preset, *heads, f"seed={seed}"])


def folder_of(out: Path, name: str, variant: str, seed: int) -> Path:
    """Folder of a run; runs of a data set share a parent, where their common start lies too."""
    return out / name / f"{variant.replace(' + ', '-')}-{seed}"
