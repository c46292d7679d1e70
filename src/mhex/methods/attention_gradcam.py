"""Attention Grad-CAM: Grad-CAM with heads as channels, on the read-out row of the last block."""

import torch
from torch import Tensor

from mhex.capture import Needs, Trace
from mhex.methods._shared import at_block
from mhex.registry import register

_NEEDS = Needs(keep={"attention": "last"}, graph="attention")


@register(
    "attention-gradcam",
    title="Heads of the last attention, weighted by their mean class gradient.",
    paper="Selvaraju et al., ICCV 2017, on attention heads as in Chefer et al., CVPR 2021, arXiv:2012.09838",
    needs=_NEEDS,
    signed=False,
    passes="F + t",
    budget=(1.35, "F"),
    adapt=at_block(_NEEDS),
    use="As the plain class-specific baseline of attention methods.",
    avoid="As the only map: where the mean gradient of the heads is negative it is all zero, which happens often.",
)
def attention_gradcam(trace: Trace, y: Tensor, *, block: int | None = None) -> Tensor:
    r"""`a_h = 1/S sum_{j spatial} sum_i dy/dA_hij`, `S_j = (1/H sum_h a_h sum_i w_i A_hij)^+`.

    Args:
        block: Number of the block, from 1, whose attention is `A`; None for the last.
    """
    layer = trace.block
    (z_gradient,) = trace.gradient(y, layer.z)
    spatial = trace.spatial.to(trace.readout.dtype)
    per_key = layer.attention_gradient(z_gradient).sum(2)
    weight = torch.einsum("bhj,bj->bh", per_key, spatial) / spatial.sum(1, keepdim=True).clamp_min(1)
    return (weight[..., None] * layer.through(trace.readout)).mean(1).clamp_min(0)
