"""What a network answers to the samples of a recipe, and how many of its answers are right."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from mhex._settings import check_that
from mhex.lab.config.recipe import TrainingRecipe
from mhex.lab.datasets import data_entry
from mhex.lab.datasets.catalogue import AnySet
from mhex.lab.train.checkpoint import load_weights
from mhex.lab.train.networks import Network, make_network
from mhex.lab.train.objective import ContrastObjective, HeadsObjective, Objective
from mhex.lab.train.samples import Feed, FeedBatches, load_samples, make_feed
from mhex.zoo.runs import attach_heads

NEIGHBOURS = 20
TEMPERATURE = 0.07  # of the votes, as DINO's evaluation has it (Wu et al. 2018)


def make_objective(recipe: TrainingRecipe, classes: Sequence[str], *, training: bool) -> tuple[Network, Objective]:
    """Build the network of a recipe with its heads, and what it minimises; with `training`, as for `make_network`."""
    network = make_network(recipe, classes, training=training)
    if recipe.heads is not None:
        scaffold = attach_heads(network.model, len(classes), recipe.heads.model_dump(mode="json"))
        return network, HeadsObjective(network.model, scaffold, recipe.heads, recipe.distil)
    compiled = training and recipe.training.compile
    if recipe.unlabelled is None or not training:
        return network, Objective(network.model, recipe.distil, compile=compiled)
    features: Any = network.model.num_features
    return network, ContrastObjective(network.model, features, recipe.unlabelled, compile=compiled)


def measure(recipe: TrainingRecipe, weights: Path, samples: AnySet, device: torch.device) -> dict[str, Any]:
    """Build the network anew, load a weights file and measure it for the entry ``accuracy`` of a card.

    It has shares of right answers in 0..1, the split, and the number of samples. A network that learned without labels
    has no answers; its entries begin with ``knn_`` and tell of the vote of the nearest training samples.
    """
    entry = data_entry(recipe.data.name)
    network, objective = make_objective(recipe, samples.classes, training=False)
    load_weights(network.model, weights, over=recipe.model.source in ("minilm", "zoo"))
    objective.to(device)
    feed = make_feed(recipe, samples, network.tokenizer, device)
    facts: dict[str, Any] = {}
    if recipe.unlabelled is None:
        scores, heads = answers(objective, feed)
        if heads:
            facts["heads"] = [round(share, 4) for share in heads]
    else:
        learned = load_samples(recipe)
        bank = make_feed(recipe, learned.train, None, device, learned.rows)
        with torch.no_grad():
            objective.eval()
            parts = [[objective.predict(inputs) for inputs, _ in FeedBatches(part)] for part in (bank, feed)]
        scores = neighbour_votes(torch.cat(parts[0]), bank.labels, torch.cat(parts[1]), len(samples.classes))
        facts |= {"neighbours": NEIGHBOURS, "bank": len(bank)}
    shares = accuracy(scores, samples.labels, samples.group_of)
    prefix, names = "" if recipe.unlabelled is None else "knn_", {"class": entry.answers, "group": entry.group_answers}
    return {
        **{f"{prefix}{names[key]}": round(value, 4) for key, value in shares.items()},
        **facts,
        "split": samples.split,
        "images" if entry.kind == "image" else "texts": len(samples),
    }


def neighbour_votes(
    bank: Tensor, labels: Tensor, features: Tensor, classes: int, neighbours: int = NEIGHBOURS
) -> Tensor:
    """Let the nearest samples of a bank, features (M, D) with labels (M,), vote for the classes of features (N, D).

    Near ones count more: a vote weighs exp(cosine / 0.07). Gives (N, C), rows that sum to one, on the CPU.
    """
    shapes = [tuple(part.shape) for part in (bank, labels, features)]
    fits = len(bank) > 0 and labels.shape == (len(bank),) and bank.shape[1:] == features.shape[1:]
    check_that(fits, "a bank of features (M, D), M at least 1, labels (M,) and features (N, D)", shapes)
    directions = functional.normalize(bank, dim=1)
    votes = []
    for part in torch.split(functional.normalize(features, dim=1), 64):
        cosines, rows = (part @ directions.T).topk(min(neighbours, len(bank)), dim=1)
        weights = (cosines / TEMPERATURE).softmax(dim=1)
        empty = torch.zeros(len(part), classes, device=bank.device)
        votes.append(empty.scatter_add_(1, labels.to(bank.device)[rows], weights).cpu())
    return torch.cat(votes)


@torch.no_grad()
def answers(objective: Objective, feed: Feed) -> tuple[Tensor, tuple[float, ...]]:
    """Give class probabilities (N, C) of all samples, on the CPU, and the accuracy of each explainer head."""
    objective.eval()
    probabilities, right = [], []
    for inputs, labels in FeedBatches(feed):
        probabilities.append(objective.predict(inputs).softmax(dim=1).cpu())
        right.append([int((head.argmax(dim=1) == labels).sum()) for head in objective.head_answers()])
    return torch.cat(probabilities), tuple(sum(column) / len(feed) for column in zip(*right, strict=True))


@torch.no_grad()
def loss_and_accuracy(objective: Objective, feed: Feed, place: int = 0, of: int = 1) -> Tensor:
    """Sum cross entropy, right answers and samples over the share of one process: (3,), float64."""
    objective.eval()
    total = torch.zeros(3, dtype=torch.float64, device=feed.labels.device)
    for inputs, labels in FeedBatches(feed, place, of):
        logits = objective.predict(inputs)
        loss = functional.cross_entropy(logits, labels, reduction="sum")
        right = (logits.argmax(dim=1) == labels).sum()
        total += torch.stack([loss.double(), right.double(), torch.full_like(total[2], len(labels))])
    return total


def accuracy(probabilities: Tensor, labels: Tensor, group_of: Sequence[int] | None = None) -> dict[str, float]:
    """Give the share of right answers, ``{"class": ..., "group": ...}`` in 0..1, the group only where there are groups.

    Probabilities are (N, C), labels (N,), and the probability of a group is the sum over its classes.
    """
    classes = probabilities.shape[1] if group_of is None else len(group_of)
    shape = (len(labels), classes)
    check_that(probabilities.shape == shape, f"probabilities of the shape {shape}", tuple(probabilities.shape))
    shares = {"class": (probabilities.argmax(dim=1) == labels).double().mean().item()}
    if group_of is not None:
        groups = torch.tensor(list(group_of))
        member = functional.one_hot(groups).to(probabilities)
        shares["group"] = ((probabilities @ member).argmax(dim=1) == groups[labels]).double().mean().item()
    return shares
