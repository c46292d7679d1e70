"""Models of the zoo that do not travel with mhex, made from their recipes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from mhex.errors import unknown_name
from mhex.train.card import SHIPPED
from mhex.train.machine import Pace
from mhex.train.needs import with_needs
from mhex.train.recipe import Recipe
from mhex.train.recipe_files import packaged_recipes, read_recipe
from mhex.train.run import train
from mhex.zoo._places import models_folder


def buildable() -> dict[str, Recipe]:
    """Packaged recipes that end in files for the zoo."""
    recipes = {name: read_recipe(path) for name, path in packaged_recipes().items()}
    return {name: recipe for name, recipe in recipes.items() if recipe.ship is not None}


def build(name: str, *, pace: Pace | None = None, folder: Path | None = None, smoke: bool = False) -> dict[str, Any]:
    """Train a model of the zoo, with everything that it rests on; what was broken off goes on.

    Args:
        name: Of a recipe that ships, without the prefix `zoo:`.
        pace: How often to write checkpoints, and where to talk.
        folder: Where `mhex.load` looks for models that were built; the runs are in its folder `runs`.
        smoke: A few steps on a few samples, to try whether everything fits together.

    Returns:
        The card, with the accuracy that was measured.

    Raises:
        ArgumentError: There is no such recipe.
        DataMissingError: Data are missing; the message says what to place where.
    """
    known = buildable()
    if name not in known:
        raise unknown_name("model to build", name, known)
    folder = folder or models_folder()
    recipe = known[name]
    for one in with_needs(recipe, packaged_recipes()[name].parent):
        train(one.smoke() if smoke else one, folder / "runs" / one.name, pace=pace, source=one.name)
    made = folder / "runs" / name / SHIPPED
    # The card last: it is what says that the model is there.
    for suffix in (".safetensors", ".json"):
        shutil.copy(made / f"{name}{suffix}", folder / f"{name}{suffix}.part")
        (folder / f"{name}{suffix}.part").replace(folder / f"{name}{suffix}")
    card: dict[str, Any] = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    return card
