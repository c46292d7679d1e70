"""Recipes that rest on others: all of them, in the order in which they can be run."""

from __future__ import annotations

from pathlib import Path

from mhex.errors import ArgumentError
from mhex.train.recipe import Recipe
from mhex.train.recipe_files import find_named, read_recipe


def with_needs(recipe: Recipe, beside: Path) -> list[Recipe]:
    """A recipe after all those that it needs, each once.

    Args:
        recipe: The last one.
        beside: Folder whose recipe files come before the packaged ones.

    Raises:
        ArgumentError: A needed recipe is unknown, or recipes need each other in a circle.
    """
    found: dict[str, Recipe] = {}

    def visit(one: Recipe, path: tuple[str, ...]) -> None:
        if one.name in path:
            raise ArgumentError(f"Recipes need each other in a circle: {' -> '.join((*path, one.name))}.")
        for name in one.needs:
            if name not in found:
                visit(read_recipe(find_named(name, beside)), (*path, one.name))
        found[one.name] = one

    visit(recipe, ())
    return list(found.values())
