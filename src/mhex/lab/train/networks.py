"""From a recipe to a network: timm, torchvision, a local Hugging Face folder, the MiniLM package, or the zoo."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from torch import nn

from mhex.errors import ArgumentError, require, unknown_name
from mhex.lab.config.recipe import ModelPart, Recipe
from mhex.lab.datasets import data_entry, data_folder
from mhex.zoo.hugging_face import load_classifier, minilm_folder
from mhex.zoo.residents import list_models, load_resident

# What the makers of networks raise when they cannot use an argument; of all these kinds, in different places.
FAILURES = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
_CLASSIFIERS = ("fc", "classifier", "heads", "head")  # of torchvision and Hugging Face models


@dataclass(frozen=True)
class Network:
    """A network to train.

    Attributes:
        model: With random or pretrained weights, and a classifier for the data's classes.
        tokenizer: For texts; None for images.
        classifier: Prefixes of the classifier's parameters.
    """

    model: nn.Module = field(repr=False)
    classifier: tuple[str, ...]
    tokenizer: Any = field(default=None, repr=False)


def check_architecture(part: ModelPart, source: str) -> None:
    """Refuse an architecture that is not there, before any work is spent.

    Args:
        part: The section of the recipe.
        source: Name of the file, for messages.

    Raises:
        ArgumentError: The name or the folder is unknown.
        MissingExtraError: The MiniLM package is not installed.
    """
    if part.source in ("timm", "torchvision"):
        known = _architectures(part.source)
        if part.architecture not in known:
            near = difflib.get_close_matches(part.architecture, known, n=1, cutoff=0.5)
            error = (
                unknown_name(f"{part.source} model", part.architecture, known)
                if near  # over a thousand names exist: listing them would help nobody
                else f"Unknown {part.source} model {part.architecture!r}, and no name is near it."
            )
            raise ArgumentError(f"{source}: model.architecture: {error}")
    elif part.source == "zoo":
        residents = [row["name"].removeprefix("zoo:") for row in list_models()]
        if part.architecture not in residents:
            raise ArgumentError(
                f"{source}: model.architecture: {unknown_name('zoo model', part.architecture, residents)}"
            )
    else:
        folder = hf_folder(part)
        if not (folder / "config.json").is_file():
            raise ArgumentError(
                f"{source}: model.architecture should name a Hugging Face folder with config.json and "
                f"model.safetensors, and {str(folder)!r} is none: place one there, or name another."
            )


@cache  # timm sorts its list anew whenever it is asked
def _architectures(source: str) -> tuple[str, ...]:
    """Names of the networks of timm or torchvision that classify images."""
    models = require("torchvision").models
    # Of torchvision without detection, segmentation, video and quantised networks.
    return tuple(require("timm").list_models() if source == "timm" else models.list_models(module=models))


def hf_folder(part: ModelPart) -> Path:
    """The Hugging Face folder of a recipe; a relative one lies in the data folder."""
    if part.source == "minilm":
        return minilm_folder()
    path = Path(part.architecture).expanduser()
    return path if path.is_absolute() else data_folder() / path


def make_network(recipe: Recipe, classes: Sequence[str], *, training: bool) -> Network:
    """Build the network of a recipe, without heads and without the weights of other recipes.

    Args:
        recipe: The recipe.
        classes: Names of the classes.
        training: Whether to add what matters in training alone.

    Returns:
        The network; that of a recipe without labels has no classifier and gives features.

    Raises:
        ArgumentError: The arguments do not fit the architecture.
    """
    part = recipe.model
    arguments = {**part.arguments, **(part.extra if training else {})}
    image = data_entry(recipe.data.name).kind == "image"
    count = len(classes) if recipe.unlabelled is None else 0
    if part.source in ("hf-folder", "minilm"):
        model, tokenizer = load_classifier(hf_folder(part), classes, "image" if image else "text", arguments)
        return Network(model, classifier_prefixes(model), tokenizer)
    if part.source == "zoo":
        return _resident(recipe, classes)
    if not image:
        raise ArgumentError(f"The recipe {recipe.name} reads texts, and {part.source} has models of images only.")
    try:
        if part.source == "timm":
            model = require("timm").create_model(part.architecture, pretrained=False, num_classes=count, **arguments)
        else:
            model = require("torchvision").models.get_model(
                part.architecture, weights=None, num_classes=len(classes), **arguments
            )
    except FAILURES as error:
        raise ArgumentError(
            f"The recipe {recipe.name}: {part.source} cannot make {part.architecture!r} with {arguments}: "
            f"{in_one_line(error)}"
        ) from error
    return Network(model, classifier_prefixes(model))


def _resident(recipe: Recipe, classes: Sequence[str]) -> Network:
    bundle = load_resident(recipe.model.architecture)
    if list(classes) != bundle.class_names:
        raise ArgumentError(
            f"The recipe {recipe.name} fits heads to {bundle.name}, so its data should have that model's "
            f"{len(bundle.class_names or ())} classes in their order, and {recipe.data.name} has {len(classes)} others."
        )
    return Network(bundle.model, classifier_prefixes(bundle.model), bundle.tokenizer)


def classifier_prefixes(model: nn.Module) -> tuple[str, ...]:
    """Prefixes of the parameters of a model's classifier, with the pooler before it in BERT-like models.

    Raises:
        ArgumentError: The model has no classifier under a known name.
    """
    config = getattr(model, "pretrained_cfg", None)
    named = config.get("classifier") if isinstance(config, dict) else None
    if named:
        return (f"{named}.",) if isinstance(named, str) else tuple(f"{name}." for name in named)
    own = [name for name, _ in model.named_children() if name in _CLASSIFIERS]
    if not own:
        raise ArgumentError(f"{type(model).__name__} has no classifier among {_CLASSIFIERS}: choose another model.")
    # A pooler is the classifier's hidden layer; pretraining often leaves it unused.
    poolers = [name for name, _ in model.named_modules() if name.endswith(".pooler") and name.count(".") == 1]
    return tuple(f"{name}." for name in (*own, *poolers))


def in_one_line(error: Exception) -> str:
    """What an error of another library says, in a line that ends with a full stop."""
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason given")
    return f"{type(error).__name__}: {line.rstrip('.')}."
