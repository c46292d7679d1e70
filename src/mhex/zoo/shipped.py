"""Models of the zoo: each a file of weights and a card. Some ship with mhex, others are built from their recipe."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from mhex._files import read_json
from mhex.bundle import Bundle
from mhex.errors import ArgumentError, require, unknown_name
from mhex.inputs.preprocess import Preprocess
from mhex.zoo.files import FAILURES, fill, read_weights
from mhex.zoo.hugging_face import load_classifier, minilm_folder
from mhex.zoo.small_bert import SOURCE as WORDS
from mhex.zoo.small_bert import build_small_bert

WEIGHTS = Path(__file__).parent / "weights"  # of the models that travel with the package
MODELS_VARIABLE = "MHEX_MODELS"
_LARGEST = 2**16  # an argument of a network: a width, a depth, a size of images
_KINDS = {str: "a text", dict: "a mapping", list: "a list", int: "a whole number"}
_REQUIRED: dict[str, type] = {
    **dict.fromkeys(("title", "modality", "architecture"), str),
    **{"arguments": dict, "classes": list, "preprocess": dict, "parameters": int, "data": dict, "licence": str},
}
_OPTIONAL: dict[str, type] = {"source": str, "base": str, "heads": dict, "answering": dict}
ROW = ("name", "title", "modality", "architecture", "classes", "parameters", "megabytes", "accuracy", "data", "licence")


def models_folder() -> Path:
    """The folder of models that were built here: what `MHEX_MODELS` names, or a folder of the user's cache."""
    name = os.environ.get(MODELS_VARIABLE, "").strip()
    if name:
        return Path(name).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME", "").strip()
    return (Path(cache).expanduser() if cache else Path.home() / ".cache") / "mhex" / "models"


def folder_of(name: str) -> Path | None:
    """The folder of the weights of a model of the zoo, the package first; None if they are nowhere."""
    for folder in (WEIGHTS, models_folder()):
        if (folder / f"{name}.safetensors").is_file() and (folder / f"{name}.json").is_file():
            return folder
    return None


def missing_of(names: Iterable[str]) -> list[str]:
    """The models of the zoo that have to be built, without their prefix, among names as `mhex.load` takes them."""
    zoo = (name.removeprefix("zoo:") for name in names if name.startswith("zoo:"))
    return [name for name in dict.fromkeys(zoo) if folder_of(name) is None]


def refuse_missing(names: Iterable[str]) -> None:
    """Refuse models of the zoo whose weights are not there, all in one sentence with the command that makes them."""
    if missing := missing_of(names):
        them, name = ("them", missing[0]) if len(missing) == 1 else ("each", "NAME")
        raise ArgumentError(
            f"The weights of {', '.join(f'zoo:{name}' for name in missing)} do not travel with mhex; train {them} once "
            f"with `mhex models build {name}`, which puts them into {models_folder()}."
        )


def _home(name: str) -> Path:
    """The folder of a model of the zoo; one whose weights are nowhere is refused."""
    refuse_missing([f"zoo:{name}"])
    return folder_of(name) or WEIGHTS


def load_zoo_model(name: str, folder: Path | None = None) -> Bundle:
    """Load a model of the zoo by its name without the prefix `zoo:`.

    Its weights and card are in `folder`, by default the package's own one, or that of models that were built here.
    """
    names = model_names(folder)
    if not names:
        raise ArgumentError(f"The zoo is empty: {folder or WEIGHTS} holds no cards; install mhex again.")
    # Only names of cards that exist pass, so a name cannot lead out of the folder.
    if name not in names:
        raise unknown_name("zoo model", name, names)
    folder = folder or _home(name)
    card = _card(name, folder)
    weights = read_weights(folder / f"{name}.safetensors")
    tokenizer = None
    if card.get("source") == "minilm":  # the file holds what was learned on top of the package's own weights
        shape = {key: value for key, value in card["arguments"].items() if key != "num_classes"}
        model, tokenizer = load_classifier(minilm_folder(), card["classes"], "text", shape)
        weights = {**model.state_dict(), **weights}
    elif card.get("source") == WORDS:
        model, tokenizer = build_small_bert(card["arguments"], card["classes"])
    elif "base" in card:  # the file holds heads for another model
        model = _base(card["base"], name, folder)
        weights = {**model.state_dict(), **weights}
    else:
        model = _network(card, name)
    if "heads" in card:  # the weights hold explainer heads too
        attach_as(model, len(card["classes"]), card)
    fill(model, weights, f"of zoo:{name}")
    preprocess = _preprocess(card["preprocess"]) if tokenizer is None else None
    return Bundle(f"zoo:{name}", model, preprocess, tokenizer, class_names=list(card["classes"]), card=card)


def attach_as(model: nn.Module, classes: int, card: Mapping[str, Any]) -> Any:
    """Attach explainer heads to a model in place, as `heads` and `answering` of a card say; give their scaffold."""
    from mhex.heads import attach

    scaffold = attach(model, classes, **card["heads"])
    for name, value in card.get("answering", {}).items():
        setattr(scaffold.heads, name, value)
    return scaffold


def zoo_card(name: str) -> dict[str, Any]:
    """The card of a model: that of the weights that are here, or else the card that is expected of them."""
    return _card(name, folder_of(name) or WEIGHTS)


def list_models(folder: Path | None = None) -> list[dict[str, Any]]:
    """One row per model of the zoo, read from its card; the models are not loaded.

    The entries: name, title, modality, architecture, classes, parameters, megabytes (None where the weights are not
    here: `mhex models build NAME` makes them), accuracy, data, licence.

    Args:
        folder: As in `load`.
    """
    rows = []
    for name in model_names(folder):
        home = folder or folder_of(name) or WEIGHTS
        card, weights = _card(name, home), home / f"{name}.safetensors"
        card |= {"name": f"zoo:{name}", "classes": len(card["classes"])}
        card["megabytes"] = round(weights.stat().st_size / 1e6, 2) if weights.is_file() else None
        rows.append({key: card.get(key) for key in ROW})
    return rows


def model_names(folder: Path | None = None) -> list[str]:
    """Names of the cards in a folder, or in all folders of the zoo; the cards are not read."""
    folders = (WEIGHTS, models_folder()) if folder is None else (folder,)
    return sorted({path.stem for place in folders for path in place.glob("*.json")})


def _network(card: Mapping[str, Any], name: str) -> nn.Module:
    """The network that a card describes, with random weights."""
    timm, arguments = require("timm"), card["arguments"]
    # timm would take other names for addresses or folders, and build a network of any size.
    if not timm.is_model(card["architecture"]) or any(
        isinstance(value, (int, float)) and not abs(value) <= _LARGEST for value in arguments.values()
    ):
        raise ArgumentError(
            f"Expected a timm model with arguments up to {_LARGEST} in the card of {name}, but got "
            f"{card['architecture']!r} with {arguments}."
        )
    try:
        model: nn.Module = timm.create_model(card["architecture"], pretrained=False, **arguments)
    except FAILURES as error:
        raise ArgumentError(
            f"Expected arguments that timm builds {card['architecture']} with in the card of {name}, but they are "
            f"{arguments}, and it says: {type(error).__name__} {str(error).rstrip('.')}."
        ) from error
    return model


def _base(base: str, name: str, folder: Path) -> nn.Module:
    """The model that the heads of another card belong to: from the same folder, or from the package."""
    beside = folder if base in model_names(folder) else None
    if base == name or "base" in _card(base, beside or _home(base)):
        raise ArgumentError(f"The card of {name} should name a model with weights of its own, not {base!r}.")
    return load_zoo_model(base, beside).model


def _preprocess(entry: Mapping[str, Any]) -> Preprocess:
    if missing := [key for key in ("size", "mean", "std", "interpolation") if key not in entry]:
        raise ArgumentError(
            f"Expected size, mean, std and interpolation of photos in a card, but {missing} are missing."
        )
    return Preprocess(entry["size"], entry["size"], entry["mean"], entry["std"], entry["interpolation"])


def _card(name: str, folder: Path) -> dict[str, Any]:
    """The card of a model, checked."""
    path = folder / f"{name}.json"
    try:
        card = read_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ArgumentError(f"The card {path} cannot be read ({error}); install mhex again.") from error
    if missing := [key for key in _REQUIRED if not isinstance(card, dict) or key not in card]:
        raise ArgumentError(f"Expected the entries {list(_REQUIRED)} in the card {path}, but {missing} are missing.")
    for key, kind in {**_REQUIRED, **_OPTIONAL}.items():
        if key in card and not isinstance(card[key], kind):
            raise ArgumentError(f"Expected {_KINDS[kind]} under {key!r} in the card {path}, but got {card[key]!r}.")
    if not card["classes"] or not all(isinstance(entry, str) for entry in card["classes"]):
        raise ArgumentError(f"Expected names of classes in the card {path}, but got {card['classes']!r}.")
    return dict(card)
