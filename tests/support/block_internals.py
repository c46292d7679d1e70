"""Tokens, MLPs and attention of one sample, seen by hooks on the families' own modules; nothing of `mhex.capture`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from support.attention import attention_by, shares_of
from support.formulas import View
from support.models import call


@dataclass(frozen=True)
class Names:
    """Where a family keeps things inside of its blocks.

    Attributes:
        blocks: Dotted name of block number `{}`.
        norm: The norm before the attention; None in post-norm blocks.
        middle: Module at which the residual tokens after the attention are seen, and whether they go in or come out.
        mlp: Module whose output is the MLP branch.
        value: The value projection: a linear layer, or `"qkv"` / `"in_proj"` for packed ones.
        output: The output projection.
        scales: Parameters of LayerScale, of the attention and of the MLP.
    """

    blocks: str
    norm: str | None = None
    middle: tuple[str, str] = ("", "in")
    mlp: str = ""
    value: str = ""
    output: str = ""
    scales: tuple[str, str] | None = None


_TIMM = Names("blocks.{}", "norm1", ("norm2", "in"), "mlp", "attn.qkv", "attn.proj")
_HF = ("layernorm_before", ("layernorm_after", "in"), "mlp", "attention.v_proj", "attention.o_proj")
_DINO = ("norm1", ("norm2", "in"), "mlp", "attention.v_proj", "attention.o_proj")
_LAMBDAS = ("layer_scale1.lambda1", "layer_scale2.lambda1")
_BERT = (None, ("attention.output.LayerNorm", "out"), "output.dense", "attention.self.value", "attention.output.dense")
_TV = ("ln_1", ("ln_2", "in"), "mlp", "self_attention.in_proj", "self_attention.out_proj")
_ENCODER = Names("encoder.layers.{}")

FAMILY_NAMES: dict[str, Names] = {
    **dict.fromkeys(
        ("timm_vit", "timm_vit_dynamic", "timm_deit_distilled", "timm_avg_class_token", "timm_avg", "timm_map"), _TIMM
    ),
    "timm_registers": Names(
        "blocks.{}", "norm1", ("norm2", "in"), "mlp", "attn.qkv", "attn.proj", ("ls1.gamma", "ls2.gamma")
    ),
    "hf_vit": Names("vit.layers.{}", *_HF),
    "hf_deit": Names("deit.layers.{}", *_HF),
    "hf_deit_teacher": Names("deit.layers.{}", *_HF),
    "hf_dinov2": Names("dinov2.encoder.layer.{}", *_DINO, _LAMBDAS),
    "hf_dinov2_registers": Names("dinov2_with_registers.encoder.layer.{}", *_DINO, _LAMBDAS),
    "hf_bert": Names("bert.encoder.layer.{}", *_BERT),
    "hf_roberta": Names("roberta.encoder.layer.{}", *_BERT),
    "hf_distilbert": Names(
        "distilbert.transformer.layer.{}", None, ("sa_layer_norm", "out"), "ffn", "attention.v_lin", "attention.out_lin"
    ),
    "tv_vit": Names("encoder.layers.encoder_layer_{}", *_TV),
    "plain_vit": Names("blocks.{}", "norm_a"),
    "plain_vit_shared": Names("blocks.{}", "norm_a"),
    "encoder_vit": _ENCODER,
    "encoder_text": _ENCODER,
}


@dataclass
class Call:
    """One attention: q, k, v and the logits, each (1, H, N, .), and A (1, H, N, N), all in the graph."""

    q: Tensor
    k: Tensor
    v: Tensor
    scale: float
    logits: Tensor
    matrix: Tensor
    z: Tensor


@dataclass
class Inside:
    """One pass over one sample; lists go over blocks, tensors are (1, N, D) and in the graph.

    Attributes:
        logits: (C,).
        stream: X(b), what enters each block.
        tokens: T(b), what enters its attention.
        middle: Residual tokens after the attention; empty for unknown families.
        mlp: MLP branches before LayerScale; empty for unknown families.
        calls: The attention of each block.
    """

    logits: Tensor = field(default_factory=lambda: torch.empty(0))
    stream: list[Tensor] = field(default_factory=list)
    tokens: list[Tensor] = field(default_factory=list)
    middle: list[Tensor] = field(default_factory=list)
    mlp: list[Tensor] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)


@contextlib.contextmanager
def attention_in_steps(cut: str = "", blocks: int = 0) -> Iterator[list[Call]]:
    """While open, attention is computed step by step and every call is noted.

    Args:
        cut: `"input"`: in the first `blocks` calls what enters is a constant and A is a leaf; `"qk"`: there q and k
            are constants.
        blocks: How many calls are those of blocks.
    """
    seen: list[Call] = []

    def steps(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
        inside = len(seen) < blocks
        if cut and inside:
            q, k = q.detach(), k.detach()
        if cut == "input" and inside:
            v = v.detach()
        logits = scale * (q @ k.mT)
        matrix = shares_of(logits + mask)
        if cut == "input" and inside:
            matrix = matrix.detach().requires_grad_()
        seen.append(Call(q, k, v, scale, logits, matrix, matrix @ v))
        return seen[-1].z

    with attention_by(steps):
        yield seen


def block_modules(v: View) -> list[nn.Module]:
    """The blocks in order; one used several times is there several times."""
    pattern = FAMILY_NAMES[v.family.name].blocks
    return [v.model.get_submodule(pattern.format(b)) for b in range(v.family.blocks)]


def look(v: View, cut: str = "") -> Inside:
    """Run the sample of a view once more and note what the blocks hold."""
    names, seen = FAMILY_NAMES[v.family.name], Inside()
    handles = []
    for block in dict.fromkeys(block_modules(v)):
        handles.append(_at(block, "in", seen.stream))
        handles.append(_at(block if names.norm is None else block.get_submodule(names.norm), *_token_site(names, seen)))
        if names.mlp:
            handles.append(_at(block.get_submodule(names.middle[0]), names.middle[1], seen.middle))
            handles.append(_at(block.get_submodule(names.mlp), "out", seen.mlp))
    with attention_in_steps(cut, v.family.blocks) as calls:
        seen.logits = call(v.model, v.inputs)[0]
    for handle in handles:
        handle.remove()
    seen.calls = calls[: v.family.blocks]
    assert len(seen.stream) == len(seen.tokens) == len(seen.calls) == v.family.blocks
    assert not names.mlp or len(seen.middle) == len(seen.mlp) == v.family.blocks
    return seen


def _token_site(names: Names, seen: Inside) -> tuple[str, list[Tensor]]:
    return ("in" if names.norm is None else "out"), seen.tokens


def _at(module: nn.Module, end: str, into: list[Tensor]) -> Any:
    if end == "out":
        return module.register_forward_hook(lambda m, args, output: into.append(output))
    return module.register_forward_pre_hook(lambda m, args: into.append(args[0]))


def run_on(v: View, site: str, tensor: Tensor) -> Tensor:
    """Logits (C,) with `tensor` (1, N, D) in place of T(L) or X(L); everything else runs as always."""
    names = FAMILY_NAMES[v.family.name]
    block, count = block_modules(v)[-1], 0

    def put(*_: Any) -> Tensor | None:
        nonlocal count
        count += 1
        # A block used several times is the last one at its last use.
        return tensor if count == sum(other is block for other in block_modules(v)) else None

    if site == "tokens" and names.norm is not None:
        handle = block.get_submodule(names.norm).register_forward_hook(put)
    else:
        handle = block.register_forward_pre_hook(lambda m, args: None if (x := put()) is None else (x, *args[1:]))
    logits = call(v.model, v.inputs)[0]
    handle.remove()
    return logits


def weights_of(block: nn.Module, names: Names) -> tuple[Tensor, Tensor | None, Tensor]:
    """W_V (D, D), its bias, and W_O (D, D), each as in `W @ x`."""
    if names.value.endswith("in_proj"):
        attention = block.get_submodule(names.value.rpartition(".")[0])
        packed, bias = attention.in_proj_weight, attention.in_proj_bias
    else:
        layer = block.get_submodule(names.value)
        packed, bias = layer.weight, layer.bias
    width = packed.shape[1]
    output = block.get_submodule(names.output).weight
    return packed.detach()[-width:], None if bias is None else bias.detach()[-width:], output.detach()
