"""Recipes that need each other, and models of the zoo that are made from theirs since they do not travel with mhex."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from mhex._files import replacing
from mhex.errors import ArgumentError, unknown_name
from mhex.lab.config.recipe import TrainingRecipe, find_named, packaged_recipes, read_recipe
from mhex.lab.train.card import SHIPPED
from mhex.lab.train.loop import Pace
from mhex.lab.train.run import train
from mhex.zoo.residents import folder_of, models_folder


def with_needs(recipe: TrainingRecipe, folder: Path) -> list[TrainingRecipe]:
    """Give a recipe after all those that it needs, each once; files of the folder come before packaged recipes."""
    recipes: dict[str, TrainingRecipe] = {}

    def visit(need: TrainingRecipe, path: tuple[str, ...]) -> None:
        if need.name in path:
            raise ArgumentError(f"Recipes need each other in a circle: {' -> '.join((*path, need.name))}.")
        for name in need.needs:
            if name not in recipes:
                visit(read_recipe(find_named(name, folder)), (*path, need.name))
        recipes[need.name] = need

    visit(recipe, ())
    return list(recipes.values())


def buildable() -> dict[str, TrainingRecipe]:
    """Read the packaged recipes that end in files for the zoo."""
    recipes = {name: read_recipe(path) for name, path in packaged_recipes().items()}
    return {name: recipe for name, recipe in recipes.items() if recipe.ship is not None}


def build(name: str, *, pace: Pace | None = None, smoke: bool = False) -> dict[str, Any]:
    """Train a model of the zoo, with everything that it rests on; what was broken off goes on.

    The files go to the folder where `mhex.load` looks for models that were built, and the runs to its folder `runs`.

    Args:
        name: Name of a recipe that ships, without the prefix `zoo:`.
        pace: How often to write checkpoints, and where to talk.
        smoke: A few steps on a few samples, to try whether everything fits together.

    Returns:
        The card, with the accuracy that was measured.
    """
    recipes = buildable()
    if name not in recipes:
        raise unknown_name("model to build", name, recipes)
    folder, recipe = models_folder(), recipes[name]
    base = recipe.model.architecture if recipe.model.source == "zoo" else None
    if base is not None and folder_of(base) is None:  # heads are fitted to a model that is not here either
        build(base, pace=pace, smoke=smoke)
    for need in with_needs(recipe, packaged_recipes()[name].parent):
        train(need.smoke() if smoke else need, folder / "runs" / need.name, pace=pace, source=need.name)
    shipped = folder / "runs" / name / SHIPPED
    # The card last: it is what says that the model is there.
    for suffix in (".safetensors", ".json"):
        with replacing(folder / f"{name}{suffix}") as aside:
            shutil.copy(shipped / f"{name}{suffix}", aside)
    card: dict[str, Any] = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    return card
