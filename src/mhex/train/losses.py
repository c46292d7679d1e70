"""Soft targets and the losses that take them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from mhex.errors import ArgumentError


def smoothed_targets(classes: int, amount: float, group_of: Sequence[int] | None = None) -> Tensor:
    """Label smoothing as a table: row c is the target of a photo of class c.

    Args:
        classes: Number of classes C.
        amount: Share of the probability that is spread.
        group_of: Group of each class. When given, the share is spread over the classes of the same group alone, so
            that smoothing never says a cat might be a dog.

    Returns:
        (C, C), float32, every row sums to one.

    Raises:
        ArgumentError: The amount is not in [0, 1), or ``group_of`` has the wrong length.
    """
    if not 0 <= amount < 1:
        raise ArgumentError(f"The amount of label smoothing should lie in [0, 1), not {amount}.")
    groups = torch.zeros(classes) if group_of is None else torch.tensor(list(group_of))
    if len(groups) != classes:
        raise ArgumentError(f"group_of should name the group of each of the {classes} classes, not of {len(groups)}.")
    same = (groups[:, None] == groups[None, :]).float()
    return (1 - amount) * torch.eye(classes) + amount * same / same.sum(dim=1, keepdim=True)


def soft_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy against class probabilities.

    Args:
        logits: (N, C).
        targets: Rows that sum to one, (N, C).

    Returns:
        Mean over the batch, a scalar in float32.
    """
    return -(targets * functional.log_softmax(logits.float(), dim=1)).sum(dim=1).mean()


def distillation(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Kullback-Leibler divergence of the student from the teacher, both softened (Hinton et al. 2015).

    Args:
        student: Logits, (N, C).
        teacher: Logits, (N, C).
        temperature: Divides both; the result is multiplied by its square, which keeps gradients of one size.

    Returns:
        Mean over the batch, a scalar in float32.
    """
    if temperature <= 0:
        raise ArgumentError(f"The temperature of distillation should be positive, not {temperature}.")
    target = functional.log_softmax(teacher.float() / temperature, dim=1)
    answer = functional.log_softmax(student.float() / temperature, dim=1)
    return functional.kl_div(answer, target, reduction="batchmean", log_target=True) * temperature**2
