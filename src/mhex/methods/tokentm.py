"""TokenTM (token transformation matters): rollout that also counts how much each block changes a token.

What public summaries of the paper confirm: effects are measured by the change of a token's length and by a cosine term,
NECC; both are combined into transformation weights; the contribution map starts as a diagonal matrix of token lengths;
attention and transformation are aggregated over all blocks. Everything more specific is a reconstruction: each choice
is an option, and the defaults are what we take the paper to mean.
"""

from collections.abc import Mapping
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from mhex.capture import Anatomy, BlockTrace, Needs, Trace
from mhex.capture.attention import EVERY
from mhex.capture.precision import wide_matmul
from mhex.methods._shared import beyond_skips, detach_float32
from mhex.registry import register


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
    needs=Needs(
        keep={"block_input": "all", "attention": "all", "mlp_output": "all"}, graph="attention", projections=True
    ),
    signed=False,
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
        weights: Which effects `W` and `W_F` count; `"none"` is `W = I` and `W_F = 0`.
        reference: `x_j`: the `"residual"` token, to which the transformed one is added, or the `"normed"` one.
        heads: Whether `W` is of all heads together (`"folded"`), or of each head on its own (`"resolved"`).
        value_bias: Whether `x~` includes the bias of the value projection.
        ffn: Whether MLPs are counted.
        start: `"lengths"` of the tokens entering the first block, or `"identity"`.
    """
    settings = {"weights": weights, "reference": reference, "heads": heads}
    mixing, changing, lengths = trace.once("weights", lambda: _transformation_weights(trace, settings, value_bias, ffn))
    z_gradients = trace.gradient(y, *(block.z for block in trace.blocks))
    row = share = trace.readout  # share: by skip connections alone
    rows = trace.read_rows  # other rows of the last attention are not read
    for number in reversed(range(len(trace.blocks))):
        block = trace.blocks[number]
        if changing is not None:
            row, share = row * (1 + changing[number]), share * (1 + changing[number])
        mixed, rows = block.through(row, z_gradients[number], rows), EVERY  # (B, H, N)
        if mixing is None:
            row = row + mixed.mean(1)
        elif heads == "folded":
            row = row + mixed.mean(1) * mixing[number]
        else:
            row = row + (mixed * mixing[number]).mean(1)
        huge = row.amax(1, keepdim=True) > 2.0**60
        row, share = (torch.where(huge, x * 2.0**-60, x) for x in (row, share))  # the scale says nothing
    row = beyond_skips(trace, row, share)
    return row * lengths if start == "lengths" else row


def _transformation_weights(
    trace: Trace, chosen: Mapping[str, str], value_bias: bool, ffn: bool
) -> tuple[Tensor | None, Tensor | None, Tensor]:
    """How much every block changes each token; the sites kept of the blocks are let go.

    Returns:
        Diagonals of `W`, (L, B, N) or (L, B, H, N), and of `W_F`, (L, B, N), None where they do not count; and the
        lengths of the tokens that enter the first block, (B, N).
    """
    blocks, kind = trace.blocks, chosen["weights"]
    lengths = detach_float32(blocks[0].site("block_input")).norm(dim=-1)
    mixing = changing = None
    if kind != "none":
        mixing = _weight(torch.stack([_through_attention(b, chosen, value_bias) for b in blocks], 1), trace.real, kind)
    if kind != "none" and ffn:
        above = [block.sites["block_input"] for block in blocks[1:]] + [blocks[-1].sites.get("block_output")]
        pairs = zip(blocks, above, strict=True)
        changing = _weight(torch.stack([_through_mlp(*pair) for pair in pairs], 1), trace.real, kind)
    for block in blocks:
        block.sites.clear()  # the graph goes on without these copies
    return mixing, changing, lengths


def _through_attention(block: BlockTrace, chosen: Mapping[str, str], with_bias: bool) -> Tensor:
    """Measures of the tokens and of what value and output projection make of them, (3, B, N) or (3, B, H, N)."""
    value, projection = block.block.value_projection, block.block.output_projection
    assert value is not None  # both are checked before the pass
    assert projection is not None
    token = detach_float32(block.site("tokens" if chosen["reference"] == "normed" else "block_input"))
    values = block.attention_record.values()  # (B, H, N, d)
    output = projection()[0].to(values)  # (D, H d)
    if block.block.attention_scale is not None:
        output = output * block.block.attention_scale.to(values)[:, None]
    bias = value()[1]
    bias = values.new_zeros(output.shape[1]) if bias is None or with_bias else bias.to(values)
    if chosen["heads"] == "folded":
        joined = values.transpose(1, 2).flatten(2)  # (B, N, H d)
        changed = wide_matmul(joined.flatten(0, 1)[None, None], output[None, None])[0, 0].view(*joined.shape[:2], -1)
        return _measures(token, changed - detach_float32(output) @ detach_float32(bias))
    values, output, bias = map(detach_float32, (values, output, bias))
    heads = values.shape[1]
    parts = zip(values.unbind(1), output.chunk(heads, 1), bias.chunk(heads), strict=True)
    return torch.stack([_measures(token, F.linear(v, part, -(part @ b))) for v, part, b in parts], 2)


def _through_mlp(block: BlockTrace, above: Tensor | None) -> Tensor:
    """Measures of the tokens and of what the MLP makes of them, (3, B, N); `above` is what the block returns."""
    branch = detach_float32(block.site("mlp_output"))
    if block.block.mlp_scale is not None:
        branch = branch * block.block.mlp_scale.to(branch)
    # Tokens between attention and MLP: where blocks end in a norm, what enters the MLP; else what it is added to.
    if above is None or block.shows("mlp_input"):
        return _measures(detach_float32(block.site("mlp_input")), branch)
    return _measures(detach_float32(above) - branch, branch)


def _measures(token: Tensor, changed: Tensor) -> Tensor:
    """Lengths before and after, and the scalar product, (3, B, N), of tokens (B, N, D)."""
    return torch.stack([token.norm(dim=-1), changed.norm(dim=-1), (token * changed).sum(-1)])


def _weight(measures: Tensor, real: Tensor, kind: str) -> Tensor:
    """`r_j c_j` from measures (3, L, B, ..., N); a token of no length counts for nothing."""
    before, after, product = measures.unbind(0)
    ratio = after / before.where(before > 0, torch.inf)
    if kind == "length":
        return ratio
    lengths = before * after
    alike = (product / lengths.where(lengths > 0, torch.inf)).exp()
    valid = real.to(alike.dtype).reshape(real.shape[0], *[1] * (alike.dim() - 3), real.shape[1])
    direction = alike / ((alike * valid).sum(-1, keepdim=True) / valid.sum(-1, keepdim=True))
    return direction if kind == "direction" else ratio * direction
