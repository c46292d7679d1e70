"""Model cards of the pets networks, and measuring what a shipped file can do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import timm
from torch import nn

from mhex.data.pets import Pets
from mhex.train.checkpoint import load_weights
from mhex.train.evaluate import accuracy, predict
from mhex.train.view import View

DATA = {
    "name": "Oxford-IIIT Pet",
    "licence": "CC BY-SA 4.0",
    "citation": (
        "O. M. Parkhi, A. Vedaldi, A. Zisserman, C. V. Jawahar: Cats and Dogs. IEEE Conference on Computer Vision and "
        "Pattern Recognition, 2012."
    ),
    "form": "photos squashed to 160 x 160 pixels; trained on the split trainval, judged on the kept part of test",
    "pretraining": (
        "CIFAR-10 (A. Krizhevsky: Learning Multiple Layers of Features from Tiny Images. Technical report, University "
        "of Toronto, 2009), enlarged"
    ),
}
LICENCE = (
    "The code that made and loads these weights is Apache-2.0. The weights were learned from photos of Oxford-IIIT "
    "Pet, which are under CC BY-SA 4.0 (their copyright stays with the photographers), and from CIFAR-10, which names "
    "no licence; where weights count as derived from their training photos, CC BY-SA 4.0 applies to them, with "
    "attribution to the data set cited above."
)


def build(card: dict[str, Any], weights: Path) -> nn.Module:
    """Make the network that a card describes and load its weights.

    Args:
        card: A model card; ``architecture`` and ``arguments`` are used.
        weights: The file of half-precision weights.

    Returns:
        The network in evaluation mode, in float32.
    """
    model: nn.Module = timm.create_model(card["architecture"], pretrained=False, **card["arguments"])
    load_weights(model, weights)
    return model.eval()


def measure(folder: Path, name: str, photos: Pets) -> dict[str, Any]:
    """Measure a shipped model: its card and its weights, exactly as they lie in the folder.

    Args:
        folder: Folder with ``NAME.json`` and ``NAME.safetensors``.
        name: Name of the model.
        photos: The photos to judge by.

    Returns:
        The entry ``accuracy`` of a card: breed and cat/dog accuracy in 0..1, the split, and the number of photos.
    """
    card = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    seen = card["preprocess"]
    view = View(seen["size"], tuple(seen["mean"]), tuple(seen["std"]))
    model = build(card, folder / f"{name}.safetensors")
    shares = accuracy(predict(model, photos.images, view), photos.labels, photos.class_species)
    return {
        "breed": round(shares["class"], 4),
        "cat_dog": round(shares["group"], 4),
        "split": photos.split,
        "images": len(photos),
    }


def describe(
    name: str,
    title: str,
    architecture: str,
    arguments: dict[str, Any],
    view: View,
    photos: Pets,
    recipe: dict[str, Any],
    parameters: int,
) -> dict[str, Any]:
    """Put a card together, its accuracy aside.

    Args:
        name: Name of the model in the zoo.
        title: One line about it.
        architecture: Name of a timm model.
        arguments: Arguments of ``timm.create_model``.
        view: What the network sees of a photo.
        photos: Photos of the data set, for the names of classes and groups.
        recipe: How the weights were made.
        parameters: Number of parameters.

    Returns:
        The card without the entry ``accuracy``.
    """
    return {
        "name": name,
        "title": title,
        "modality": "image",
        "architecture": architecture,
        "arguments": arguments,
        "classes": list(photos.classes),
        "groups": photos.groups,
        "preprocess": view.as_card(),
        "data": DATA,
        "recipe": recipe,
        "parameters": parameters,
        "licence": LICENCE,
    }


def write_card(card: dict[str, Any], folder: Path) -> None:
    """Write ``NAME.json`` into the folder."""
    text = json.dumps(card, indent=2, ensure_ascii=False) + "\n"
    (folder / f"{card['name']}.json").write_text(text, encoding="utf-8")
