"""Images without some of their patches: a Vision Transformer is not given their tokens."""

from __future__ import annotations

from dataclasses import replace

import torch.nn.functional as F
from torch import Tensor

from mhex.capture import Batch, plain_vit
from mhex.errors import ArgumentError
from mhex.perturb.subject import Subject
from mhex.perturb.units import check_map


def on_patches(subject: Subject, saliency: Tensor) -> Tensor:
    """Maps (B, h, w) on the grid of the model's patches; of a finer map, the mean over each patch."""
    saliency = check_map(subject, saliency)
    rows, columns = plain_vit(subject.model).grid(*subject.batch.pixels.shape[-2:])
    height, width = saliency.shape[-2:]
    if height % rows or width % columns:
        raise ArgumentError(
            f"Expected maps on the grid of the model's patches, {rows}x{columns}, or a finer one that it divides, for "
            f"the reference 'drop', but got {height}x{width}."
        )
    return F.avg_pool2d(saliency[:, None], (height // rows, width // columns))[:, 0]


def dropped_patches(subject: Subject, removed: Tensor, samples: Tensor) -> Batch:
    """Inputs for the model.

    Args:
        subject: The images.
        removed: Bool (M, P), True at patches that are deleted; the position of each other one stays.
        samples: Whose variant each row is, (M,).
    """
    return replace(subject.variants(subject.batch.pixels, samples), kept=~removed)
