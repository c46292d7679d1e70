"""What a classifier answers, and the share of right answers over classes and over their groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from mhex.errors import ArgumentError
from mhex.train.feeds import Feed, row_batches
from mhex.train.objective import Objective

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
