"""The network of a recipe with its loss, and what it can do, measured from a weights file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from mhex.data import ImageSet, data_entry
from mhex.data.catalogue import AnySet
from mhex.train.checkpoint import load_weights
from mhex.train.evaluate import accuracy, answers
from mhex.train.networks import Network, make_network
from mhex.train.objective import HeadsObjective, Objective, attach_heads
from mhex.train.recipe import Recipe
from mhex.train.samples import make_feed


def make_objective(recipe: Recipe, classes: tuple[str, ...], *, training: bool) -> tuple[Network, Objective]:
    """The network of a recipe with its heads, and what it minimises."""
    network = make_network(recipe, classes, training=training)
    if recipe.heads is None:
        compiled = training and recipe.training.compile
        return network, Objective(network.model, recipe.distil, compile=compiled)
    scaffold = attach_heads(network.model, len(classes), recipe.heads)
    return network, HeadsObjective(network.model, scaffold, recipe.heads, recipe.distil)


def trained(recipe: Recipe, classes: Sequence[str], weights: Path) -> tuple[Network, Objective]:
    """The network of a recipe, built anew, with the weights of a file."""
    network, objective = make_objective(recipe, tuple(classes), training=False)
    load_weights(network.model, weights, over=recipe.model.source in ("minilm", "zoo"))
    return network, objective


def measure(recipe: Recipe, weights: Path, judged: AnySet, device: torch.device) -> dict[str, Any]:
    """Build the network anew, load a weights file and measure it.

    Returns:
        The entry ``accuracy`` of a card: shares of right answers in 0..1, the split, and the number of samples.
    """
    entry = data_entry(recipe.data.name)
    network, objective = trained(recipe, judged.classes, weights)
    feed = make_feed(recipe, judged, network.tokenizer, device)
    said = answers(objective.to(device), feed)
    shares = accuracy(said.probabilities, judged.labels, judged.group_of if isinstance(judged, ImageSet) else None)
    names = {"class": entry.answers, "group": entry.group_answers}
    found: dict[str, Any] = {names[key]: round(value, 4) for key, value in shares.items()}
    if said.heads:
        found["heads"] = [round(share, 4) for share in said.heads]
    return {**found, "split": judged.split, "images" if entry.kind == "image" else "texts": len(judged)}
