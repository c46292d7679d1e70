"""The network of a recipe with its loss, and what it can do, measured from a weights file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from mhex.data import ImageSet, data_entry
from mhex.data.catalogue import AnySet
from mhex.train.checkpoint import load_weights
from mhex.train.evaluate import accuracy, answers
from mhex.train.feeds import Feed
from mhex.train.neighbours import NEIGHBOURS, features_of, neighbour_votes
from mhex.train.networks import Network, make_network
from mhex.train.objective import HeadsObjective, Objective, attach_heads
from mhex.train.recipe import Recipe
from mhex.train.samples import load_samples, make_feed
from mhex.train.unlabelled import ContrastObjective


def make_objective(recipe: Recipe, classes: tuple[str, ...], *, training: bool) -> tuple[Network, Objective]:
    """The network of a recipe with its heads, and what it minimises; with a projector only to train without labels."""
    network = make_network(recipe, classes, training=training)
    if recipe.heads is None:
        compiled = training and recipe.training.compile
        if recipe.unlabelled is not None and training:
            features: Any = network.model.num_features
            return network, ContrastObjective(network.model, features, recipe.unlabelled, compile=compiled)
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
        The entry ``accuracy`` of a card: shares of right answers in 0..1, the split, and the number of samples. A
        network that learned without labels has no answers; its entries begin with ``knn_`` and tell of the vote of the
        nearest training samples.
    """
    entry = data_entry(recipe.data.name)
    network, objective = trained(recipe, judged.classes, weights)
    feed = make_feed(recipe, judged, network.tokenizer, device)
    groups = judged.group_of if isinstance(judged, ImageSet) else None
    names = {"class": entry.answers, "group": entry.group_answers}
    if recipe.unlabelled is not None:
        return {
            **_neighbours(recipe, objective.to(device), feed, groups, names),
            "split": judged.split,
            "images": len(judged),
        }
    said = answers(objective.to(device), feed)
    shares = accuracy(said.probabilities, judged.labels, groups)
    found: dict[str, Any] = {names[key]: round(value, 4) for key, value in shares.items()}
    if said.heads:
        found["heads"] = [round(share, 4) for share in said.heads]
    return {**found, "split": judged.split, "images" if entry.kind == "image" else "texts": len(judged)}


def _neighbours(
    recipe: Recipe, objective: Objective, feed: Feed, groups: Sequence[int] | None, names: Mapping[str, str]
) -> dict[str, Any]:
    """Shares of right votes of the nearest training samples by cosine of the features, each as ``knn_...``."""
    samples = load_samples(recipe)
    known = make_feed(recipe, samples.train, None, feed.labels.device, samples.kept)
    votes = neighbour_votes(
        features_of(objective, known), known.labels, features_of(objective, feed), len(samples.train.classes)
    )
    shares = accuracy(votes, feed.labels.cpu(), groups)
    found: dict[str, Any] = {f"knn_{names[key]}": round(value, 4) for key, value in shares.items()}
    return {**found, "neighbours": NEIGHBOURS, "bank": len(known)}
