"""Networks of `mhex train`: built from what their recipe says, and loaded from the folder of a run."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from torch import nn

from mhex._files import read_json
from mhex.bundle import Bundle
from mhex.errors import ArgumentError, MhexError, require
from mhex.inputs.preprocess import Preprocess
from mhex.zoo.files import FAILURES, fill, in_one_line, read_weights
from mhex.zoo.hugging_face import load_classifier, minilm_folder
from mhex.zoo.shipped import attach_as, load_zoo_model
from mhex.zoo.small_bert import SOURCE as WORDS
from mhex.zoo.small_bert import build_small_bert

REPORT = "report.json"
WEIGHTS = "weights.safetensors"
_ATTACHING = ("where", "preset", "coupling", "gate_target", "relu", "exclude_special")


def build_network(
    model: Mapping[str, Any],
    arguments: Mapping[str, Any],
    classes: Sequence[str],
    kind: Literal["image", "text"],
    *,
    features: bool = False,
) -> tuple[nn.Module, Any]:
    """Build a network, without heads and without learned weights, and its tokenizer; None for images.

    `model` is the section of a recipe, and `arguments` shape the network; with `features` it has no classifier.
    """
    source, architecture = model["source"], model["architecture"]
    if source in ("hf-folder", "minilm"):
        return load_classifier(hf_folder(source, architecture), classes, kind, arguments)
    if source == "zoo":
        bundle = load_zoo_model(architecture)
        if list(classes) != bundle.class_names:
            raise ArgumentError(
                f"Heads are fitted to {bundle.name}, so the data should have that model's "
                f"{len(bundle.class_names or ())} classes in their order, and {len(classes)} others came."
            )
        return bundle.model, bundle.tokenizer
    if (kind == "text") != (source == WORDS):
        raise ArgumentError(
            f"The data are {kind}s, and {source} has models of {'texts' if source == WORDS else 'images'} only."
        )
    if source == WORDS:
        return build_small_bert(arguments, classes)
    try:
        if source == "timm":
            count = 0 if features else len(classes)
            return require("timm").create_model(architecture, pretrained=False, num_classes=count, **arguments), None
        get_model = require("torchvision").models.get_model
        return get_model(architecture, weights=None, num_classes=len(classes), **arguments), None
    except FAILURES as error:
        words = f"{source} cannot make {architecture!r} with {dict(arguments)}"
        raise ArgumentError(f"{words}: {in_one_line(error)}") from error


def hf_folder(source: str, architecture: str) -> Path:
    """Give the Hugging Face folder of a recipe; a relative one lies in the folder that `MHEX_DATA` names."""
    if source == "minilm":
        return minilm_folder()
    return Path(os.environ.get("MHEX_DATA", "").strip()).expanduser() / Path(architecture).expanduser()


def head_entries(heads: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The entries of a card on explainer heads, from a recipe: arguments of `mhex.attach`, and what part answers."""
    arguments = {name: heads[name] for name in _ATTACHING if heads.get(name) is not None}
    answering = {"mode": heads["mode"], "decay": heads["decay"], "joined": heads["classifier"]}
    return {"heads": arguments, "answering": answering}


def attach_heads(model: nn.Module, classes: int, heads: Mapping[str, Any]) -> Any:
    """Attach explainer heads to a model in place, as the section `heads` of a recipe says; give their scaffold."""
    return attach_as(model, classes, head_entries(heads))


def load_run(folder: str) -> Bundle:
    """Load the network that `mhex train` made in a folder, with its heads, preprocessing or tokenizer, and classes."""
    path = Path(folder).expanduser()
    if not all((path / name).is_file() for name in (REPORT, WEIGHTS)):
        raise ArgumentError(
            f"Expected a folder of `mhex train` with {REPORT} and {WEIGHTS}, but {folder} has not got both: name the "
            "folder that the command printed, or let the run end (the same command goes on)."
        )
    try:
        report = read_json((path / REPORT).read_text(encoding="utf-8"))
        recipe, classes = report["recipe"], list(report["classes"])
        data, part, heads = recipe["data"], recipe["model"], recipe.get("heads")
        features = recipe.get("unlabelled") is not None  # without labels, outputs are features
        side, arguments = data.get("side"), dict(part["arguments"])
        card = {"title": recipe["title"], "accuracy": report["test"], "classes": [] if features else classes}
        preprocess = Preprocess(side, side, data["mean"], data["std"]) if side else None
        model, tokenizer = build_network(part, arguments, classes, "image" if side else "text", features=features)
        if heads is not None:
            attach_heads(model, len(classes), heads)
    except MhexError:
        raise
    except (OSError, *FAILURES) as error:
        raise ArgumentError(f"The report {path / REPORT} cannot be read ({error}): train again.") from error
    weights = read_weights(path / WEIGHTS)
    if part["source"] in ("minilm", "zoo"):  # the file may hold what was learned on top of the model's own weights
        weights = {**model.state_dict(), **weights}
    fill(model, weights, f"of run:{folder}")
    return Bundle(f"run:{folder}", model, preprocess, tokenizer, None if features else classes, card)
