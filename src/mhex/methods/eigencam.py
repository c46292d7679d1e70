"""Eigen-CAM: the first principal component of the feature maps."""

from __future__ import annotations

import torch
from torch import Tensor

from mhex.capture import Needs, Trace
from mhex.registry import register


@register(
    "eigencam",
    title="The first principal component of the feature maps, whatever the class.",
    paper="Muhammad & Yeasin, IJCNN 2020, arXiv:2008.00299",
    modalities=("image",),
    needs=Needs(keep={"features": "last"}),
    signed=False,
    class_specific=False,
    passes="F",
    budget=(1.15, "F"),
    use="To see what stands out in an image for a network, without gradients, for networks without classes too.",
    avoid="When you ask why one class and not another: the map is the same for all classes.",
)
def eigencam(trace: Trace) -> Tensor:
    r"""`S = (A u)^+`, `A` (h w, K) centred per channel, `u` its first right singular vector.

    The sign of `u` is arbitrary: it is the one that gives `A u` its largest value above zero.
    """
    maps = trace.as_maps(trace.features)
    flat = maps.flatten(2).mT  # (B, h w, K)
    left, values, _ = torch.linalg.svd(flat - flat.mean(1, keepdim=True), full_matrices=False)
    scores = left[:, :, 0] * values[:, :1]
    flipped = scores.amin(1).abs() > scores.amax(1).abs()
    return torch.where(flipped[:, None], -scores, scores).clamp_min(0).reshape(-1, *maps.shape[2:])
