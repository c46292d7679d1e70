"""AttCAT: gradient times token at every block's input, weighted by the attention that the token receives."""

import torch
from torch import Tensor

from mhex.capture import Needs, Trace, full
from mhex.methods._shared import detach_float32
from mhex.registry import register


@register(
    "attcat",
    title="Gradient times token at every block, weighted by the attention that the token receives.",
    paper="Qiang et al., AttCAT: Explaining Transformers via Attentive Class Activation Tokens, NeurIPS 2022",
    needs=Needs(keep={"block_input": "all", "attention": "all"}, graph="block_input"),
    signed=True,
    passes="F + B",
    budget=(1.3, "F+B"),
    use="Text and ViTs when signed scores of tokens over all blocks are wanted.",
    avoid="Where scores must add up to the class score: they do not.",
)
def attcat(trace: Trace, y: Tensor) -> Tensor:
    r"""`S_i = sum_b a(b)_i sum_d X(b)_id dy/dX(b)_id`, `a(b)_i = 1/(H N') sum_h sum_m A(b)_hmi`.

    `X(b)` is the residual stream entering block b, and `m` runs over the N' queries that are not padding. The published
    code also hides the class and separator tokens from the model, which changes the prediction; here it sees them.
    """
    real = full(trace.real.to(trace.logits.dtype))
    queries = real / real.sum(1, keepdim=True)
    received = trace.once("received", lambda: [block.through(queries).mean(1) for block in trace.blocks])
    tokens = [block.site("block_input") for block in trace.blocks]
    scores = torch.zeros_like(real)
    for weight, token, gradient in zip(received, tokens, trace.gradient(y, *tokens), strict=True):
        scores += weight * (detach_float32(token) * detach_float32(gradient)).sum(-1)
    return scores
