"""Attention Grad-CAM: Grad-CAM with heads as channels, on the read-out row of the last block."""

import torch
from torch import Tensor

from mhex.capture import Needs, Trace
from mhex.registry import register


@register(
    "attention-gradcam",
    title="Heads of the last attention, weighted by their mean class gradient.",
    paper="Selvaraju et al., ICCV 2017, on attention heads as in Chefer et al., CVPR 2021, arXiv:2012.09838",
    needs=Needs(keep={"attention": "last"}, graph="attention"),
    signed=False,
    passes="F + t",
    budget=(1.35, "F"),
    use="As the plain class-specific baseline of attention methods.",
    avoid="As the only map: where the mean gradient of the heads is negative it is all zero, which happens often.",
)
def attention_gradcam(trace: Trace, y: Tensor) -> Tensor:
    r"""`a_h = 1/S sum_{j spatial} sum_i dy/dA_hij`, `S_j = (1/H sum_h a_h sum_i w_i A_hij)^+`."""
    block = trace.blocks[-1]
    (z_gradient,) = trace.gradient(y, block.z)
    spatial = trace.spatial.to(trace.readout.dtype)
    per_key = block.attention_gradient(z_gradient).sum(2)
    weight = torch.einsum("bhj,bj->bh", per_key, spatial) / spatial.sum(1, keepdim=True).clamp_min(1)
    return (weight[..., None] * block.through(trace.readout)).mean(1).clamp_min(0)
