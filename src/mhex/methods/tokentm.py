"""TokenTM (token transformation matters): rollout that also counts how much each block changes a token.

What public summaries of the paper confirm: effects are measured by the change of a token's length and by a cosine term,
NECC; both are combined into transformation weights; the contribution map starts as a diagonal matrix of token lengths;
attention and transformation are aggregated over all blocks. Everything more specific is a reconstruction: each choice
is an option, and the defaults are what we take the paper to mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from mhex.capture import Anatomy, Needs, Trace
from mhex.errors import ArgumentError
from mhex.methods._rows import beyond_skips, through_heads
from mhex.methods._transformation import transformation_weights
from mhex.registry import register

_CHOICES = {
    "weights": ("length+direction", "length", "direction", "none"),
    "reference": ("residual", "normed"),
    "heads": ("folded", "resolved"),
    "start": ("lengths", "identity"),
}


def _reads(options: Mapping[str, Any], anatomy: Anatomy) -> Needs:
    keep: dict[Any, Any] = {"block_input": "all", "attention": "all"}
    if options["reference"] == "normed":
        keep["tokens"] = "all"
    if options["ffn"] and options["weights"] != "none":
        keep["mlp_output"] = "all"
        if any(block.norm1 is None for block in anatomy.blocks):
            keep["mlp_input"] = "all"
        else:
            keep["block_output"] = "last"
    return Needs(keep=keep, graph="attention", projections=options["weights"] != "none")


@register(
    "tokentm",
    title="Rollout of gradient-weighted attention that counts how blocks change a token's length and direction.",
    paper="Wu, Duan, Kang, Tang & Yan, Token Transformation Matters, CVPR 2024, arXiv:2403.14552",
    modalities=("image", "text"),
    needs=Needs(
        keep={"block_input": "all", "attention": "all", "mlp_output": "all"}, graph="attention", projections=True
    ),
    signed=False,
    class_specific=True,
    passes="F + B",
    budget=(1.3, "F+B"),
    adapt=_reads,
    use="ViTs when the size of what tokens carry should count beside attention.",
    avoid="Where publications must be matched to the digit: its formulas are reconstructed, as its page says.",
)
def tokentm(
    trace: Trace,
    y: Tensor,
    *,
    weights: Literal["length+direction", "length", "direction", "none"] = "length+direction",
    reference: Literal["residual", "normed"] = "residual",
    heads: Literal["folded", "resolved"] = "folded",
    value_bias: bool = False,
    ffn: bool = True,
    start: Literal["lengths", "identity"] = "lengths",
) -> Tensor:
    r"""`S = w^T prod_{b=L}^{1} (I + W_F(b)) (I + A^(b) W(b)) diag(|X(1)|)`, `A^ = mean_h (dy/dA * A)^+`.

    `W = diag(r_j c_j)` with the ratio of lengths `r_j = |x~_j| / |x_j|` of the transformed token `x~_j` (value and
    output projection) and the token `x_j`, and NECC `c_j = exp(cos(x_j, x~_j)) / mean_m exp(cos(x_m, x~_m))`; `W_F` is
    the same of the MLP. Multiplied as a row vector from the top; scaled down by a power of two where it would overflow.
    Where the head reads one word alone, as of a decoder, what this word keeps by skip connections alone is left out of
    the map: it would be most of it.

    Args:
        trace: The observed pass.
        y: Target score, (B,).
        weights: Which effects `W` and `W_F` count; `"none"` is `W = I` and `W_F = 0`.
        reference: `x_j`: the `"residual"` token, to which the transformed one is added, or the `"normed"` one.
        heads: Whether `W` is of all heads together (`"folded"`), or of each head on its own (`"resolved"`).
        value_bias: Whether `x~` includes the bias of the value projection.
        ffn: Whether MLPs are counted.
        start: `"lengths"` of the tokens entering the first block, or `"identity"`.
    """
    chosen = {"weights": weights, "reference": reference, "heads": heads, "start": start}
    for name, value in chosen.items():
        if value not in _CHOICES[name]:
            raise ArgumentError(f"Expected {name} {' or '.join(map(repr, _CHOICES[name]))}, but got {value!r}.")
    mixing, changing, lengths = trace.once("weights", lambda: transformation_weights(trace, chosen, value_bias, ffn))
    z_gradients = trace.gradient(y, *(block.z for block in trace.blocks))
    row = share = trace.readout  # share: by skip connections alone
    for number in reversed(range(len(trace.blocks))):
        block = trace.blocks[number]
        if changing is not None:
            row, share = row * (1 + changing[number]), share * (1 + changing[number])
        weighted = block.attention_gradient(z_gradients[number]).clamp_(min=0).mul_(block.attention())
        if mixing is None:
            row = row + through_heads(row, weighted)
        elif heads == "folded":
            row = row + through_heads(row, weighted) * mixing[number]
        else:
            row = row + ((row[:, None, None] @ weighted)[:, :, 0] * mixing[number]).mean(1)
        factor = torch.where(row.amax(1, keepdim=True) > 2.0**60, 2.0**-60, 1.0)  # its scale says nothing
        row, share = row * factor, share * factor
    row = beyond_skips(trace, row, share)
    return row * lengths if start == "lengths" else row
