"""Eigen-CAM: the first principal component of the feature maps."""

import torch
import torch.nn.functional as F
from torch import Tensor

from mhex.capture import Needs, Trace
from mhex.registry import register

_SQUARINGS = 20  # so that what is left of an eigenvalue 0.01 % below the largest is exp(-100)


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
    avoid="When you ask why one class and not another: the map is the same for all classes. Whether channels are "
    "centred decides much: see `center`.",
)
def eigencam(trace: Trace, *, center: bool = True) -> Tensor:
    r"""`S = (A u)^+`, `A` (h w, K) the feature maps, `u` the first right singular vector.

    The sign of `u` is arbitrary: it is the one that gives `A u` its largest value above zero.

    Args:
        center: Whether each channel is taken less its mean over the map first, as the package grad-cam does. False for
            the features as they are, as the paper writes it. The two can differ much: where channels have large means,
            as in ViTs, the first singular vector without centring is nearly their mean, and the map may mark the
            opposite places.
    """
    maps = trace.as_maps(trace.features)
    flat = maps.flatten(2).mT  # (B, h w, K)
    scores = _first_component(flat - flat.mean(1, keepdim=True) if center else flat)
    flipped = scores.amin(1).abs() > scores.amax(1).abs()
    return torch.where(flipped[:, None], -scores, scores).clamp_min(0).reshape(-1, *maps.shape[2:])


def _first_component(a: Tensor) -> Tensor:
    """`u s` of the first singular vector and value of matrices (B, n, K), (B, n), up to its sign."""
    # By squaring the smaller Gram matrix again and again, of which the largest eigenvalue is left: a singular value
    # decomposition of small matrices is slow on a GPU, and has all the others too.
    size = a.abs().amax((1, 2), keepdim=True).clamp_min(torch.finfo(a.dtype).tiny)
    a = a / size  # or squares leave the range of float32
    wide = a.shape[1] <= a.shape[2]
    power = a @ a.mT if wide else a.mT @ a
    for _ in range(_SQUARINGS):
        power = power / torch.linalg.matrix_norm(power, keepdim=True).clamp_min(torch.finfo(a.dtype).tiny)
        power = power @ power
    largest = power.diagonal(dim1=1, dim2=2).argmax(1)
    vector = F.normalize(power[torch.arange(len(a), device=a.device), largest], dim=1)[..., None]
    scores = vector * (a.mT @ vector).norm(dim=1, keepdim=True) if wide else a @ vector
    return (scores * size)[..., 0]
