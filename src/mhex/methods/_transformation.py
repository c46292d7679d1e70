"""How blocks change a token's length and direction: the transformation weights of TokenTM."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from mhex.capture import BlockTrace, Trace
from mhex.methods._tokens import fixed


def transformation_weights(
    trace: Trace, chosen: Mapping[str, str], value_bias: bool, ffn: bool
) -> tuple[Tensor | None, Tensor | None, Tensor]:
    """How much every block changes each token.

    Args:
        trace: The observed pass; the sites kept of its blocks are let go.
        chosen: Options of `tokentm`.
        value_bias: Whether the bias of the value projection counts.
        ffn: Whether MLPs count.

    Returns:
        Diagonals of `W`, (L, B, N) or (L, B, H, N), and of `W_F`, (L, B, N), None where they do not count; and the
        lengths of the tokens that enter the first block, (B, N).
    """
    blocks, kind = trace.blocks, chosen["weights"]
    lengths = _length(fixed(blocks[0].site("block_input")))
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
    token = fixed(block.site("tokens" if chosen["reference"] == "normed" else "block_input"))
    values = fixed(block.attention_record.values())  # (B, H, N, d)
    output = projection()[0].to(values)  # (D, H d)
    if block.block.attention_scale is not None:
        output = output * block.block.attention_scale.to(values)[:, None]
    bias = value()[1]
    bias = values.new_zeros(output.shape[1]) if bias is None or with_bias else bias.to(values)
    if chosen["heads"] == "folded":
        return _measures(token, F.linear(values.transpose(1, 2).flatten(2), output, -(output @ bias)))
    heads = values.shape[1]
    parts = zip(values.unbind(1), output.chunk(heads, 1), bias.chunk(heads), strict=True)
    return torch.stack([_measures(token, F.linear(v, part, -(part @ b))) for v, part, b in parts], 2)


def _through_mlp(block: BlockTrace, above: Tensor | None) -> Tensor:
    """Measures of the tokens and of what the MLP makes of them, (3, B, N); `above` is what the block returns."""
    branch = fixed(block.site("mlp_output"))
    if block.block.mlp_scale is not None:
        branch = branch * block.block.mlp_scale.to(branch)
    # Tokens between attention and MLP: where blocks end in a norm, what enters the MLP; else what it is added to.
    if above is None or block.shows("mlp_input"):
        return _measures(fixed(block.site("mlp_input")), branch)
    return _measures(fixed(above) - branch, branch)


def _measures(token: Tensor, changed: Tensor) -> Tensor:
    """Lengths before and after, and the scalar product, (3, B, N), of tokens (B, N, D)."""
    return torch.stack([_length(token), _length(changed), (token * changed).sum(-1)])


def _weight(measures: Tensor, real: Tensor, kind: str) -> Tensor:
    """`r_j c_j` from measures (3, L, B, ..., N); a token of no length counts for nothing."""
    before, after, product = measures.unbind(0)
    ratio = after / before.where(before > 0, torch.inf)
    if kind == "length":
        return ratio
    lengths = before * after
    alike = (product / lengths.where(lengths > 0, torch.inf)).exp()
    counted = real.to(alike.dtype).reshape(real.shape[0], *[1] * (alike.dim() - 3), real.shape[1])
    direction = alike / ((alike * counted).sum(-1, keepdim=True) / counted.sum(-1, keepdim=True))
    return direction if kind == "direction" else ratio * direction


def _length(tokens: Tensor) -> Tensor:
    """Euclidean length, (B, N), of tokens (B, N, D)."""
    lengths: Tensor = torch.linalg.vector_norm(tokens, dim=-1)
    return lengths
