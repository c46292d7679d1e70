"""Accuracy of classifiers whose classes fall into groups."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mhex.errors import ArgumentError
from mhex.train.view import View


@torch.no_grad()
def predict(model: nn.Module, images: Tensor, view: View, batch: int = 64) -> Tensor:
    """Class probabilities of photos, without augmentation.

    Args:
        model: The network; it is put into evaluation mode.
        images: (N, 3, H, W), uint8; moved to the network's device batch by batch.
        view: What the network sees of a photo.
        batch: Photos at a time.

    Returns:
        (N, C), float32, on the CPU.
    """
    model.eval()
    device = next(model.parameters()).device
    return torch.cat([model(view(part.to(device))).float().softmax(dim=1).cpu() for part in torch.split(images, batch)])


def accuracy(probabilities: Tensor, labels: Tensor, group_of: Sequence[int]) -> dict[str, float]:
    """Share of right answers over the classes, and over their groups by summed probabilities.

    Args:
        probabilities: (N, C).
        labels: Right classes, (N,).
        group_of: Group of each class, counted from 0, C of them.

    Returns:
        ``{"class": ..., "group": ...}``, both in 0..1.

    Raises:
        ArgumentError: The shapes do not fit together.
    """
    if probabilities.shape != (len(labels), len(group_of)):
        raise ArgumentError(
            f"Probabilities should have the shape (photos, classes) = {(len(labels), len(group_of))}, not "
            f"{tuple(probabilities.shape)}."
        )
    groups = torch.tensor(list(group_of))
    member = torch.nn.functional.one_hot(groups).to(probabilities)
    right_class = probabilities.argmax(dim=1) == labels
    right_group = (probabilities @ member).argmax(dim=1) == groups[labels]
    return {"class": right_class.double().mean().item(), "group": right_group.double().mean().item()}
