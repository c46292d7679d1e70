"""What a classifier answers, and the share of right answers over classes and over their groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from mhex.errors import ArgumentError
from mhex.lab.train.objective import Objective
from mhex.lab.train.samples import Feed, row_batches

NEIGHBOURS = 20
TEMPERATURE = 0.07  # of the votes, as DINO's evaluation has it (Wu et al. 2018)


@torch.no_grad()
def features_of(objective: Objective, feed: Feed) -> Tensor:
    """Features (N, D) of all samples of a feed as they are, float32, on the feed's device, in evaluation mode."""
    objective.eval()
    return torch.cat([objective.predict(feed.plain(rows)) for rows in row_batches(len(feed), BATCH)])


def neighbour_votes(
    bank: Tensor, labels: Tensor, features: Tensor, classes: int, neighbours: int = NEIGHBOURS
) -> Tensor:
    """Classes by the vote of the nearest samples of a bank.

    Args:
        bank: Features of samples with known classes, (M, D).
        labels: Their classes, (M,).
        features: Of the samples in question, (N, D).
        classes: Number of classes C.
        neighbours: Number of voters, all of the bank where it is smaller. Near ones count more: a vote weighs
            exp(cosine / 0.07).

    Returns:
        (N, C), rows that sum to one, on the CPU.

    Raises:
        ArgumentError: The bank is empty, or the shapes do not fit together.
    """
    if len(bank) == 0 or labels.shape != (len(bank),) or bank.shape[1:] != features.shape[1:]:
        raise ArgumentError(
            f"A bank should hold features (M, D) with labels (M,), M at least 1, and be asked about features (N, D); "
            f"got {tuple(bank.shape)}, {tuple(labels.shape)} and {tuple(features.shape)}."
        )
    known = functional.normalize(bank, dim=1)
    voted = []
    for some in torch.split(functional.normalize(features, dim=1), BATCH):
        cosines, rows = (some @ known.T).topk(min(neighbours, len(bank)), dim=1)
        weights = (cosines / TEMPERATURE).softmax(dim=1)
        votes = torch.zeros(len(some), classes, device=bank.device)
        voted.append(votes.scatter_add_(1, labels.to(bank.device)[rows], weights).cpu())
    return torch.cat(voted)


BATCH = 64


@dataclass(frozen=True)
class Answers:
    """What a classifier said to N samples.

    Attributes:
        probabilities: (N, C), float32, on the CPU.
        heads: Right answers of each explainer head, a share in 0..1; empty without heads.
    """

    probabilities: Tensor
    heads: tuple[float, ...] = ()


@torch.no_grad()
def answers(objective: Objective, feed: Feed) -> Answers:
    """Class probabilities of all samples of a feed, as they are; the model is left in evaluation mode."""
    objective.eval()
    said, right = [], []
    for rows in row_batches(len(feed), BATCH):
        said.append(objective.predict(feed.plain(rows)).softmax(dim=1).cpu())
        labels = feed.labels[rows.to(feed.labels.device)]
        right.append([int((head.argmax(dim=1) == labels).sum()) for head in objective.head_answers()])
    heads = tuple(sum(column) / len(feed) for column in zip(*right, strict=True))
    return Answers(torch.cat(said), heads)


@torch.no_grad()
def loss_and_accuracy(objective: Objective, feed: Feed, place: int = 0, of: int = 1) -> Tensor:
    """Sums over the samples of one of several processes; the model is left in evaluation mode.

    Returns:
        Summed cross entropy of the answer, right answers, samples: (3,), float64, on the feed's device.
    """
    objective.eval()
    total = torch.zeros(3, dtype=torch.float64, device=feed.labels.device)
    for rows in row_batches(len(feed), BATCH, place, of):
        logits = objective.predict(feed.plain(rows))
        labels = feed.labels[rows.to(feed.labels.device)]
        loss = functional.cross_entropy(logits, labels, reduction="sum")
        right = (logits.argmax(dim=1) == labels).sum()
        total += torch.stack([loss.double(), right.double(), torch.full_like(total[2], len(rows))])
    return total


def accuracy(probabilities: Tensor, labels: Tensor, group_of: Sequence[int] | None = None) -> dict[str, float]:
    """Share of right answers over the classes, and over their groups by summed probabilities.

    Args:
        probabilities: (N, C).
        labels: Right classes, (N,).
        group_of: Group of each class, counted from 0, C of them; None where there are none.

    Returns:
        ``{"class": ..., "group": ...}``, both in 0..1, the group only where there are groups.

    Raises:
        ArgumentError: The shapes do not fit together.
    """
    classes = probabilities.shape[1] if group_of is None else len(group_of)
    if probabilities.shape != (len(labels), classes):
        raise ArgumentError(
            f"Probabilities should have the shape (samples, classes) = {(len(labels), classes)}, not "
            f"{tuple(probabilities.shape)}."
        )
    shares = {"class": (probabilities.argmax(dim=1) == labels).double().mean().item()}
    if group_of is not None:
        groups = torch.tensor(list(group_of))
        member = functional.one_hot(groups).to(probabilities)
        shares["group"] = ((probabilities @ member).argmax(dim=1) == groups[labels]).double().mean().item()
    return shares
