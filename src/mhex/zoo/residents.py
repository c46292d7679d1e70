"""The zoo's residents: each a file of weights and a card. Some ship with mhex, others are built from their recipe."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from mhex._files import read_json
from mhex.bundle import Bundle
from mhex.errors import ArgumentError, require, unknown_name
from mhex.inputs.preprocess import Preprocess
from mhex.zoo import places
from mhex.zoo.files import fill, read_weights
from mhex.zoo.hugging_face import load_minilm

_LARGEST = 2**16  # an argument of a network: a width, a depth, a size of images
_REQUIRED: dict[str, tuple[type, str]] = {
    **dict.fromkeys(("title", "modality", "architecture"), (str, "a text")),
    "arguments": (dict, "a mapping"),
    "classes": (list, "a list"),
    "preprocess": (dict, "a mapping"),
    "parameters": (int, "a whole number"),
    "data": (dict, "a mapping"),
    "licence": (str, "a text"),
}
_OPTIONAL: dict[str, tuple[type, str]] = {
    **dict.fromkeys(("source", "base"), (str, "a text")),
    **dict.fromkeys(("heads", "answering"), (dict, "a mapping")),
}


def load_resident(name: str, folder: Path | None = None) -> Bundle:
    """Load a resident of the zoo.

    Args:
        name: Without the prefix `zoo:`.
        folder: Where `NAME.safetensors` and `NAME.json` are; by default the package's own folder, or the folder of
            models that were built here.
    """
    names = places.names_in(folder) if folder else _all_names()
    if not names:
        raise ArgumentError(f"The zoo is empty: {folder or places.WEIGHTS} holds no cards; install mhex again.")
    # Only names of cards that exist pass, so a name cannot lead out of the folder.
    if name not in names:
        raise unknown_name("zoo model", name, names)
    folder = folder or places.home_of(name)
    card = _card(name, folder)
    weights = read_weights(folder / f"{name}.safetensors")
    tokenizer = None
    if card.get("source") == "minilm":  # the file holds what was learned on top of the package's own weights
        shape = {key: value for key, value in card["arguments"].items() if key != "num_classes"}
        model, tokenizer = load_minilm(card["classes"], shape)
        weights = {**model.state_dict(), **weights}
    elif "base" in card:  # the file holds heads for another resident
        model = _base(card["base"], name, folder)
        weights = {**model.state_dict(), **weights}
    else:
        model = _network(card, name)
    if "heads" in card:  # the weights hold explainer heads too
        from mhex.heads import attach

        scaffold = attach(model, len(card["classes"]), **card["heads"])
        for entry, value in card.get("answering", {}).items():
            setattr(scaffold.heads, entry, value)
    fill(model, weights, f"of zoo:{name}")
    preprocess = squash_of(card["preprocess"]) if tokenizer is None else None
    return Bundle(f"zoo:{name}", model, preprocess, tokenizer, class_names=list(card["classes"]), card=card)


def resident_card(name: str) -> dict[str, Any]:
    """The card of a resident: that of the weights that are here, or else the card that is expected of them."""
    return _card(name, places.folder_of(name) or places.WEIGHTS)


def _network(card: Mapping[str, Any], name: str) -> nn.Module:
    """The network that a card describes, with random weights."""
    timm, arguments = require("timm"), card["arguments"]
    # timm would take other names for addresses or folders, and build a network of any size.
    if card["architecture"] not in timm.list_models() or any(
        isinstance(value, (int, float)) and not abs(value) <= _LARGEST for value in arguments.values()
    ):
        raise ArgumentError(
            f"Expected a timm model with arguments up to {_LARGEST} in the card of {name}, but got "
            f"{card['architecture']!r} with {arguments}."
        )
    try:
        model: nn.Module = timm.create_model(card["architecture"], pretrained=False, **arguments)
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError) as error:
        raise ArgumentError(
            f"Expected arguments that timm builds {card['architecture']} with in the card of {name}, but they are "
            f"{arguments}, and it says: {type(error).__name__} {str(error).rstrip('.')}."
        ) from error
    return model


def _base(base: str, name: str, folder: Path) -> nn.Module:
    """The model of the resident that another one's heads belong to: from the same folder, or from the package."""
    beside = folder if base in places.names_in(folder) else None
    if base == name or "base" in _card(base, beside or places.home_of(base)):
        raise ArgumentError(f"The card of {name} should name a resident with weights of its own, not {base!r}.")
    return load_resident(base, beside).model


def squash_of(entry: Mapping[str, Any]) -> Preprocess:
    """The preprocessing that a card's entry `preprocess` describes."""
    missing = [key for key in ("size", "mean", "std", "interpolation") if key not in entry]
    if missing:
        raise ArgumentError(
            f"Expected size, mean, std and interpolation of photos in a card, but {missing} are missing."
        )
    return Preprocess(entry["size"], entry["size"], entry["mean"], entry["std"], entry["interpolation"])


def list_models(folder: Path | None = None) -> list[dict[str, Any]]:
    """One row per resident of the zoo, read from its card; the models are not loaded.

    The entries: name, title, modality, architecture, classes, parameters, megabytes (None where the weights are not
    here: `mhex models build NAME` makes them), accuracy, data, licence.

    Args:
        folder: As in `load`.
    """
    rows = []
    for name in _all_names() if folder is None else places.names_in(folder):
        home = folder or places.folder_of(name) or places.WEIGHTS
        card, weights = _card(name, home), home / f"{name}.safetensors"
        rows.append(
            {
                "name": f"zoo:{name}",
                **{key: card[key] for key in ("title", "modality", "architecture")},
                "classes": len(card["classes"]),
                "parameters": card["parameters"],
                "megabytes": round(weights.stat().st_size / 1e6, 2) if weights.is_file() else None,
                "accuracy": card.get("accuracy"),
                **{key: card[key] for key in ("data", "licence")},
            }
        )
    return rows


def _all_names() -> list[str]:
    return sorted({*places.names_in(places.WEIGHTS), *places.names_in(places.models_folder())})


def _card(name: str, folder: Path) -> dict[str, Any]:
    """The card of a resident, checked."""
    path = folder / f"{name}.json"
    try:
        card = read_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ArgumentError(f"The card {path} cannot be read ({error}); install mhex again.") from error
    missing = [key for key in _REQUIRED if not isinstance(card, dict) or key not in card]
    if missing:
        raise ArgumentError(f"Expected the entries {list(_REQUIRED)} in the card {path}, but {missing} are missing.")
    for key, (kind, words) in {**_REQUIRED, **_OPTIONAL}.items():
        if key in card and not isinstance(card[key], kind):
            raise ArgumentError(f"Expected {words} under {key!r} in the card {path}, but got {card[key]!r}.")
    if not card["classes"] or not all(isinstance(entry, str) for entry in card["classes"]):
        raise ArgumentError(f"Expected names of classes in the card {path}, but got {card['classes']!r}.")
    return dict(card)
