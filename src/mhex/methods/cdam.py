"""Class-Discriminative Attention Maps (CDAM): gradient times token, at the tokens that enter the last attention.

The target may also be a `mhex.Concept`: then the score is the similarity of the latent vector to that of examples, and
the model needs no classifier. `closed_form=True` gives the same numbers from attention, keys and values, without a
gradient through the attention.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from mhex._settings import check_that
from mhex.capture import Anatomy, Needs, Trace
from mhex.errors import ArgumentError
from mhex.methods._paths import Site, settle_site
from mhex.methods._shared import detach_float32, tell_cancelled
from mhex.registry import register

# The graph starts at the residual stream, so that both it and the normalised tokens have a gradient.
_TOKENS = Needs(keep={"block_input": "last", "tokens": "last"}, graph="block_input")
_ATTENTION = Needs(keep={"attention": "last"}, graph="attention")


def _reads(options: Mapping[str, Any], anatomy: Anatomy) -> Needs:
    if not options["closed_form"]:
        return _TOKENS.at_block(options["block"], len(anatomy.blocks))
    check_that(options["block"] is None, "block=None with closed_form=True", options["block"])
    last = anatomy.blocks[-1] if anatomy.blocks else None
    plain = last is not None and last.key_projection is not None and last.value_projection is not None
    if last is not None and not (plain and anatomy.readout in ("class", "class+distilled")):
        raise ArgumentError(
            "Expected a model that reads class tokens, with plain projections of keys and values, for "
            f"closed_form=True, but this {anatomy.family} is none; leave it out."
        )
    if options["site"] not in ("auto", "tokens"):
        raise ArgumentError(f"Expected site 'tokens' with closed_form=True, but got {options['site']!r}.")
    return _ATTENTION


@register(
    "cdam",
    title="Gradient times token, at the tokens that enter the last attention.",
    paper="Brocki, Binda & Chung, Class-Discriminative Attention Maps for Vision Transformers, 2023, arXiv:2312.02364",
    needs=_TOKENS,
    signed=True,
    passes="F + t",
    budget=(1.35, "F"),
    adapt=_reads,
    use="Class- and concept-specific scores of ViT tokens for little more than a forward pass, also on frozen "
    "backbones with a linear probe.",
    avoid="On models that average the patches (see `site`), and where a quiet map is wanted: it marks few patches, and "
    "`cdam-integrated` is steadier.",
)
def cdam(
    trace: Trace, y: Tensor, *, site: Site = "auto", closed_form: bool = False, block: int | None = None
) -> Tensor:
    r"""`S_i = sum_j T_ij dy/dT_ij`, `T` the layer-normalised tokens entering the last attention.

    Args:
        site: `"tokens"` for `T`; `"block_input"` for the tokens before the norm, which the paper finds far worse on
            class-token models. A norm does not notice the length of what enters it, so these say nothing of the last
            attention, only of the skip connection. `"auto"` is `"tokens"`, and `"block_input"` where the head averages
            the patches, as far as the family is known: they reach it by the skip connection.
        closed_form: The exact relation to attention instead of a gradient, `S_i = sum_h A_0i [(v_i - b_v) g +
            scale (q_0 (k_i - b_k)) ((v_i - z_0) g)]`, `g = dy/dz_0`. For models that read class tokens, whose own
            scores are then 0.
        block: Number of the block, from 1, whose tokens are `T`; None for the last.
    """
    source = settle_site(trace, site)
    if closed_form:
        return _closed_form(trace, y)
    tokens = trace.block.site(source)
    (gradient,) = trace.gradient(y, tokens)
    products = detach_float32(tokens) * detach_float32(gradient)
    scores = products.sum(-1)
    tell_cancelled(trace, "cdam", scores[:, None], products.abs().sum(-1)[:, None])
    return scores


def _closed_form(trace: Trace, y: Tensor) -> Tensor:
    last, rows = trace.blocks[-1], trace.read_rows
    key, value = last.block.key_projection, last.block.value_projection
    assert key is not None  # both are checked before the pass
    assert value is not None
    record = last.attention_record
    (z_gradient,) = trace.gradient(y, last.z)
    gradient, query, z = (detach_float32(tensor[:, :, rows]) for tensor in (z_gradient, record.query, last.z))
    keys, values = detach_float32(record.keys()), detach_float32(record.values())
    key_bias, value_bias = _bias(key()[1], keys), _bias(value()[1], values)
    by_value = gradient @ values.mT  # (B, H, R, N)
    value_term = by_value - gradient @ value_bias.mT
    key_term = record.scale * (query @ (keys - key_bias).mT) * (by_value - (gradient * z).sum(-1, keepdim=True))
    scores = (last.attention(rows) * (value_term + key_term)).sum((1, 2))
    scores[:, rows] = 0
    return scores


def _bias(bias: Tensor | None, like: Tensor) -> Tensor:
    """A projection's bias as (H, 1, d)."""
    heads, width = like.shape[1], like.shape[3]
    return like.new_zeros(heads, 1, width) if bias is None else bias.to(like).reshape(heads, 1, width)
