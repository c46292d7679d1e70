"""What must hold between the keys of a recipe, said in one sentence before any work is spent."""

from __future__ import annotations

from mhex.data import CATALOGUE
from mhex.errors import ArgumentError, unknown_name
from mhex.train.networks import check_architecture
from mhex.train.recipe import Recipe


def check_recipe(recipe: Recipe, source: str) -> None:
    """Refuse a recipe that cannot be run.

    Args:
        recipe: Read from a file; types and limits of single keys are checked already.
        source: Name of the file, for messages.

    Raises:
        ArgumentError: One sentence that names the file and the key.
        MissingExtraError: A package that the recipe needs is not installed.
    """

    def refuse(words: str) -> ArgumentError:
        return ArgumentError(f"{source}: {words}")

    data, settings = recipe.data, recipe.train
    if data.name not in CATALOGUE:
        raise refuse(f"data.name: {unknown_name('data set', data.name, CATALOGUE)}")
    entry = CATALOGUE[data.name]
    if entry.kind == "image" and data.side is None:
        raise refuse("the key data.side is missing; expected the side of the input in pixels, since these are images.")
    if entry.kind == "text":
        if data.length is None:
            raise refuse("the key data.length is missing; expected the most tokens of a text, since these are texts.")
        for name in ("augment", "distil"):
            if getattr(recipe, name) is not None:
                raise refuse(f"{name} is for images, and {data.name} holds texts: leave it out.")
    _check_optimizer(recipe, source)
    check_architecture(recipe.model, source)
    if settings.batch % settings.accumulate:
        raise refuse(f"train.batch should be a multiple of train.accumulate, not {settings.batch}.")
    if settings.freeze == "host" and recipe.heads is None:
        raise refuse("train.freeze: host trains explainer heads alone, and the recipe has no heads; add the section.")
    if settings.compile and recipe.heads is not None:
        raise refuse("train.compile does not go with heads, which read what passes through the network; set it false.")
    validated = entry.validation if data.validation is None else data.validation
    if settings.early_stopping is not None and not validated:
        raise refuse(
            "train.early_stopping needs a validation, and there is none: set data.validation to a share such as 0.1."
        )
    if recipe.distil is not None and not recipe.distil.teachers:
        raise refuse("distil.teachers should name at least one recipe; leave distil out for none.")
    if recipe.name in recipe.needs:
        raise refuse(f"{recipe.name} cannot start from its own weights or teach itself.")


def _check_optimizer(recipe: Recipe, source: str) -> None:
    from timm.optim import list_optimizers

    known = list_optimizers()
    if recipe.train.optimizer not in known:
        raise ArgumentError(f"{source}: train.optimizer: {unknown_name('optimizer', recipe.train.optimizer, known)}")
