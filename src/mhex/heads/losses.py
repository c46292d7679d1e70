"""Losses of the heads, and the running sum of their class scores."""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from mhex._settings import check_choice, check_that
from mhex.errors import ArgumentTypeError

Mode = Literal["pretrain", "finetune"]
Reduction = Literal["sum", "mean"]


def running_sum(logits: Sequence[Tensor], decay: float) -> Tensor:
    """`s_L` of `s_l = y_l + decay * s_(l-1)` for class scores (B, n), first head to last; a decay of 1 is the sum."""
    check_that(0 <= decay <= 1, "a decay from 0 to 1", decay)
    total = logits[0]
    for current in logits[1:]:
        total = current + decay * total
    return total


def check_labels(labels: Tensor, batch: int, num_classes: int, multi_label: bool) -> Tensor:
    """Labels in the form that the losses take: class numbers (B,) or targets (B, n).

    They may be class numbers (B,) or (B, 1), or class probabilities (B, n); with `multi_label`, or for one class, they
    are 0 or 1 for each class, (B, n).
    """
    if not isinstance(labels, Tensor):
        raise ArgumentTypeError(f"Expected labels to be a tensor, but got {type(labels).__name__}.")
    binary = multi_label or num_classes == 1
    expectation = f"({batch}, {num_classes})" if multi_label else f"({batch},)"
    if labels.dim() == 2 and labels.shape[1] == 1 and not multi_label:  # as MedMNIST gives them
        labels = labels[:, 0]
    if binary and labels.dim() == 1 and num_classes == 1:
        labels = labels[:, None]
    fits = labels.shape == (batch, num_classes) if binary or labels.dim() == 2 else labels.shape == (batch,)
    check_that(fits, f"labels of shape {expectation}", tuple(labels.shape))
    if labels.dim() == 1 and (labels.is_floating_point() or labels.dtype == torch.bool):
        raise ArgumentTypeError(f"Expected class numbers (an integer tensor), but got {labels.dtype}.")
    if not torch.compiler.is_compiling():
        lowest, highest = float(labels.min()), float(labels.max())
        top = num_classes - 1 if labels.dim() == 1 else 1
        right = lowest >= 0 and highest <= top  # not where a label is not a number
        check_that(right, f"labels from 0 to {top}", f"{lowest:g} to {highest:g}", f"; num_classes is {num_classes}")
    return labels if labels.dim() == 1 else labels.float()


def class_loss(logits: Tensor, labels: Tensor, multi_label: bool, per_sample: bool = False) -> Tensor:
    """Mean cross-entropy of scores (B, n), or of each sample (B,); binary for several labels or a single score."""
    reduction = "none" if per_sample else "mean"
    if multi_label or logits.shape[1] == 1:
        loss = F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), reduction=reduction)
        return loss.mean(1) if per_sample else loss
    return F.cross_entropy(logits, labels if labels.dim() == 1 else labels.to(logits.dtype), reduction=reduction)


def combined_loss(
    logits: Sequence[Tensor],
    labels: Tensor,
    mode: Mode,
    reduction: Reduction = "sum",
    decay: float = 0.8,
    multi_label: bool = False,
    weights: Sequence[float] | None = None,
) -> Tensor:
    """`pretrain`: one loss of the running sum. `finetune`: the sum, or mean, of one loss per head; see `Scaffold.loss`.

    `logits` (B, n) are of the first head to the last, and then of a kept classifier; labels are from `check_labels`.
    """
    if mode == "pretrain":
        return class_loss(running_sum(logits, decay), labels, multi_label)
    check_choice("mode", mode, get_args(Mode))
    check_choice("reduction", reduction, get_args(Reduction))
    factors = [1.0] * len(logits) if weights is None else weights
    check_that(len(factors) == len(logits), f"{len(logits)} weights, one per loss", len(factors))
    losses = [f * class_loss(scores, labels, multi_label) for f, scores in zip(factors, logits, strict=True)]
    return torch.stack(losses).sum() / (1 if reduction == "sum" else len(losses))
