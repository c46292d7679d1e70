"""Attention-guided CAM (AGCAM): sigmoid of attention logits times positive gradients, summed over blocks and heads.

Gradients run through skip connections and MLPs only, not through attention.
"""

import torch
from torch import Tensor

from mhex.capture import Needs, Trace, full
from mhex.registry import register


@register(
    "agcam",
    title="Sigmoid of attention logits times positive gradients that pass by all attention above.",
    paper="Leem & Seo, Attention Guided CAM, AAAI 2024, arXiv:2402.04563",
    needs=Needs(keep={"attention": "all"}, graph="attention", start="each"),
    signed=False,
    passes="F + B",
    budget=(1.3, "F+B"),
    use="ViTs when a class-specific map is wanted for the price of one backward pass.",
    avoid="For evidence against a class: it is unsigned. It was proposed for images, not for text.",
)
def agcam(trace: Trace, y: Tensor) -> Tensor:
    r"""`S_j = sum_b sum_h sum_i sigmoid(l(b)_hij) (dy/dA(b)_hij)^+`, `l` the scaled logits before any mask.

    The gradient treats what enters every attention as a constant; then only the tokens that the head reads have one.
    """
    scores = torch.zeros_like(full(trace.real.to(trace.logits.dtype)))
    rows = trace.read_rows
    for block, gradient in zip(trace.blocks, trace.gradient(y, *(b.z for b in trace.blocks)), strict=True):
        record = block.attention_record
        positive = block.attention_gradient(gradient[:, :, rows]).clamp_(min=0)
        if record.mask is not None or record.causal:
            positive.masked_fill_(record.logits(rows).isneginf(), 0.0)  # pairs that do not exist
        scores += positive.mul_(record.logits(rows, masked=False).sigmoid()).sum((1, 2))
    return scores
