"""From a recipe to a network: timm, torchvision, a local Hugging Face folder, the MiniLM package, or the zoo."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from torch import nn

from mhex.errors import ArgumentError, require, unknown_name
from mhex.lab.config.recipe import RecipeModel, TrainingRecipe
from mhex.lab.datasets import data_entry
from mhex.zoo.runs import build_network, hf_folder
from mhex.zoo.shipped import model_names
from mhex.zoo.small_bert import SOURCE as WORDS

_CLASSIFIERS = ("fc", "classifier", "heads", "head")  # of torchvision and Hugging Face models


@dataclass(frozen=True)
class Network:
    """A network to train, with random or pretrained weights."""

    model: nn.Module = field(repr=False)
    classifier: tuple[str, ...]  # prefixes of the classifier's parameters
    tokenizer: Any = field(default=None, repr=False)  # for texts; None for images


def check_architecture(part: RecipeModel) -> None:
    """Refuse an architecture, folder or package that is not there, before any work is spent."""
    name = part.architecture
    if part.source in ("timm", "torchvision", "zoo"):
        names = model_names() if part.source == "zoo" else _architectures(part.source)
        if name not in names:
            raise unknown_name(f"{part.source} model", name, names)
    elif part.source != WORDS and not (hf_folder(part.source, name) / "config.json").is_file():
        words = "expected a Hugging Face folder with config.json and model.safetensors, absolute or in MHEX_DATA"
        raise ArgumentError(f"{words}, and {str(hf_folder(part.source, name))!r} is none: name another.")


@cache  # timm sorts its list anew whenever it is asked
def _architectures(source: str) -> tuple[str, ...]:
    """Give the names of the networks of timm or torchvision that classify images."""
    models = require("torchvision").models
    # Of torchvision without detection, segmentation, video and quantised networks.
    return tuple(require("timm").list_models() if source == "timm" else models.list_models(module=models))


def make_network(recipe: TrainingRecipe, classes: Sequence[str], *, training: bool) -> Network:
    """Build the network of a recipe, without heads and weights of others; `training` adds what matters there alone."""
    part, kind = recipe.model, data_entry(recipe.data.name).kind
    arguments = {**part.arguments, **(part.extra if training else {})}
    features = recipe.unlabelled is not None
    try:
        model, tokenizer = build_network(part.model_dump(), arguments, classes, kind, features=features)
    except ArgumentError as error:
        raise ArgumentError(f"The recipe {recipe.name}: {error}") from error
    return Network(model, classifier_prefixes(model), tokenizer)


def classifier_prefixes(model: nn.Module) -> tuple[str, ...]:
    """Find the prefixes of the parameters of a model's classifier, with the pooler before it in BERT-like models."""
    config = getattr(model, "pretrained_cfg", None)
    prefix = config.get("classifier") if isinstance(config, dict) else None
    if prefix:
        return (f"{prefix}.",) if isinstance(prefix, str) else tuple(f"{name}." for name in prefix)
    names = [name for name, _ in model.named_children() if name in _CLASSIFIERS]
    if not names:
        raise ArgumentError(f"{type(model).__name__} has no classifier among {_CLASSIFIERS}: choose another model.")
    # A pooler is the classifier's hidden layer; pretraining often leaves it unused.
    poolers = [name for name, _ in model.named_modules() if name.endswith(".pooler") and name.count(".") == 1]
    return tuple(f"{name}." for name in (*names, *poolers))
