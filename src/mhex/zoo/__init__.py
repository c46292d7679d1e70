"""Named models: `load` turns a name into a model with its preprocessing, class names and card."""

from pathlib import Path

from mhex.bundle import Bundle
from mhex.errors import ArgumentError, ArgumentTypeError
from mhex.zoo.hugging_face import load_folder
from mhex.zoo.runs import load_run
from mhex.zoo.shipped import list_models, load_zoo_model
from mhex.zoo.timm_models import load_timm

__all__ = ["FORMS", "list_models", "load"]

FORMS = "zoo:NAME (see `mhex models`), timm:NAME[:weights.safetensors], hf:FOLDER or run:FOLDER"


def load(name: str, folder: str | Path | None = None) -> Bundle:
    """Load a model by name. Nothing is fetched from a network, and no code that comes with weights is run.

    Args:
        name: `zoo:NAME` for a model that ships with mhex, `timm:NAME` for a timm architecture with random weights,
            `timm:NAME:weights.safetensors` for one with your weights, `hf:FOLDER` for a local Hugging Face folder,
            `run:FOLDER` for what `mhex train` made, with its heads.
        folder: Where the zoo's weights and cards are; the installed package's own folder by default.

    Returns:
        The model in evaluation mode, on the CPU and in float32, with preprocessing or tokenizer, class names and card.

    Raises:
        ArgumentError: The name, the weights or the folder cannot be used; the message says what to do.

    Example:
        >>> import mhex
        >>> mhex.load("timm:resnet10t").card["weights"]
        'random'
    """
    if not isinstance(name, str):
        raise ArgumentTypeError(f"Expected the name of a model, {FORMS}, but got {type(name).__name__}.")
    prefix, colon, place = name.partition(":")
    if not colon or prefix not in ("zoo", "timm", "hf", "run"):
        raise ArgumentError(f"Expected a model as {FORMS}, but got {name!r}.")
    if not place:
        raise ArgumentError(f"Expected a name after {name!r}: a model is given as {FORMS}.")
    if prefix == "zoo":
        return load_zoo_model(place, None if folder is None else Path(folder))
    if prefix == "hf":
        return load_folder(place)
    if prefix == "run":
        return load_run(place)
    architecture, _, weights = place.partition(":")
    if place.endswith(":"):
        raise ArgumentError(f"Expected a weights file after {name!r}; leave the last ':' out for random weights.")
    return load_timm(architecture, weights or None)
