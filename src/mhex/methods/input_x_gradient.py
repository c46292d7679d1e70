"""Input x gradient, on pixels or word embeddings."""

from __future__ import annotations

import torch
from torch import Tensor

from mhex.capture import Needs, Trace
from mhex.registry import register


@register(
    "input-x-gradient",
    title="Each input value times its gradient.",
    paper="Shrikumar et al., 2016, arXiv:1605.01713",
    modalities=("image", "text"),
    needs=Needs(keep={"input": "last"}, graph="input"),
    signed=True,
    class_specific=True,
    passes="F + B",
    budget=(1.3, "F+B"),
    use="As a baseline that every differentiable model allows.",
    avoid="As the only explanation: it is noisy, and complete only for piecewise linear models.",
)
def input_x_gradient(trace: Trace, y: Tensor) -> Tensor:
    r"""`S = sum_c x_c dy/dx_c`: over colour channels for images, (B, H, W), over the embedding for text, (B, T)."""
    (gradient,) = trace.gradient(y, trace.input)
    dtype = torch.promote_types(gradient.dtype, torch.float32)
    product = trace.input.detach().to(dtype) * gradient.to(dtype)
    return product.sum(1) if trace.batch.modality == "image" else product.sum(-1)
