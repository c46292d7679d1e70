"""What features are worth without a classifier: the vote of the nearest neighbours."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from mhex.errors import ArgumentError
from mhex.train.evaluate import BATCH
from mhex.train.feeds import Feed, row_batches
from mhex.train.objective import Objective

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
