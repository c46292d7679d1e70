"""Single passes with a part hidden: by a mask of 0 and 1, or softly."""

from __future__ import annotations

import torch
from torch import Tensor

from mhex.errors import ArgumentError
from mhex.perturb.subject import Subject


def minmax(saliency: Tensor) -> Tensor:
    """Maps (B, ...) from 0 to 1, each by itself; a constant map becomes zero."""
    flat = saliency.flatten(1)
    low = flat.amin(1, keepdim=True)
    reach = flat.amax(1, keepdim=True) - low
    scaled = (flat - low) / torch.where(reach > 0, reach, 1.0)
    return scaled.where(reach > 0, 0.0).view_as(saliency)


def blended(subject: Subject, share: Tensor, reference: str, sigma: float | None = None) -> Tensor:
    """Images `x (1 - share) + reference share`, (B, C, H, W).

    Args:
        subject: The samples.
        share: How much of each pixel is replaced, (B, H, W), from 0 to 1.
        reference: By what; see `mhex.perturb.reference`.
        sigma: Of the blur.
    """
    if subject.batch.modality != "image":
        raise ArgumentError("Expected images: texts are not blended.")
    pixels = subject.batch.pixels
    return torch.lerp(pixels, subject.reference(reference, sigma), share[:, None].to(pixels))


def probabilities_of(subject: Subject, changed: Tensor, classes: Tensor) -> Tensor:
    """Probabilities of classes (B, J) in changed images (B, C, H, W), float64: one pass per image."""
    size = subject.batch.size
    parts = []
    for start, stop, logits in subject.run(size, lambda jobs: subject.variants(changed, jobs)):
        z, norm = subject.read(logits, classes[start:stop])
        parts.append((z - norm).double().exp())
    return torch.cat(parts)


def clean_probabilities(subject: Subject, classes: Tensor) -> Tensor:
    """Those of the samples as they are, (B, J), float64."""
    z, norm = subject.read(subject.logits, classes)
    return (z - norm).double().exp()
