"""Methods of one block in another block than the last, by hooks and loops of the test's own."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

import mhex
from mhex.errors import ArgumentError
from support.models import enliven

DEPTH, HEADS, CLASSES = 3, 2, 4
METHODS = ("attention", "attention-gradcam", "cdam", "cdam-smooth", "cdam-integrated")
X = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.fixture(scope="module")
def model() -> nn.Module:
    small = {"img_size": 16, "patch_size": 4, "depth": DEPTH, "embed_dim": 12, "num_heads": HEADS}
    network = timm.create_model("vit_tiny_patch16_224", num_classes=CLASSES, **small)
    return enliven(network.requires_grad_(False)).double().eval()


def grid(scores: Tensor) -> Tensor:
    return scores[:, 1:].reshape(-1, 4, 4)


def weights_of(model: Any, block: int) -> Tensor:
    """Attention of a block, (B, H, N, N), from what its projection of queries and keys gives."""
    outputs: list[Tensor] = []
    handle = model.blocks[block - 1].attn.qkv.register_forward_hook(lambda *call: outputs.append(call[2]))
    model(X)
    handle.remove()
    query, key, _ = outputs[0].unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
    return (query @ key.mT * query.shape[-1] ** -0.5).softmax(-1)


def logit(model: Any, block: int, tokens: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Logit of class 1, and the normalised tokens that enter a block's attention, or those that stand for them."""
    seen: list[Tensor] = []

    def stand_in(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        seen.append(output.detach().requires_grad_() if tokens is None else tokens)
        return seen[0]

    handle = model.blocks[block - 1].norm1.register_forward_hook(stand_in)
    score = model(X)[:, 1]
    handle.remove()
    return score, seen[0]


@pytest.mark.parametrize("block", [1, 2])
def test_attention_and_cdam_of_a_block(model: nn.Module, block: int) -> None:
    rows = mhex.explain(model, X, "attention", block=block).scores
    assert torch.allclose(rows, grid(weights_of(model, block).mean(1)[:, 0]), atol=1e-12)
    y, tokens = logit(model, block)
    (gradient,) = torch.autograd.grad(y.sum(), tokens)
    scores = mhex.explain(model, X, "cdam", 1, block=block, site="tokens").scores
    assert torch.allclose(scores, grid((tokens * gradient).sum(-1)), atol=1e-12)


@pytest.mark.parametrize("block", [1, 2])
def test_attention_gradcam_of_a_block(model: Any, block: int) -> None:
    """The gradient with respect to attention goes through the blocks above, whose attention changes with it."""
    attend = model.blocks[block - 1].attn
    fused, attend.fused_attn = attend.fused_attn, False
    seen: list[Tensor] = []
    leaf = lambda *call: seen.append(call[2].detach().requires_grad_()) or seen[0]  # noqa: E731
    handle = attend.attn_drop.register_forward_hook(leaf)
    y = model(X)[:, 1]
    handle.remove()
    attend.fused_attn = fused
    (gradient,) = torch.autograd.grad(y.sum(), seen[0])
    weight = gradient.sum(2)[:, :, 1:].mean(-1)
    wanted = (weight[..., None] * seen[0][:, :, 0]).mean(1).clamp_min(0).detach()
    scores = mhex.explain(model, X, "attention-gradcam", 1, block=block).scores
    assert float(wanted.abs().max()) > 1e-6
    assert torch.allclose(scores, grid(wanted), atol=1e-12)


@pytest.mark.parametrize("block", [1, 2])
def test_paths_of_cdam_in_a_block(model: nn.Module, block: int) -> None:
    """Integrated scores add up to what the logit loses with zero tokens; without noise, smooth CDAM is CDAM."""
    e = mhex.explain(model, X, "cdam-integrated", 1, block=block, steps=60)
    y, tokens = logit(model, block)
    change = y - logit(model, block, torch.zeros_like(tokens))[0]
    sums = torch.zeros_like(tokens)
    nodes = torch.linspace(0, 1, 401, dtype=torch.float64)
    nodes = (nodes[1:] + nodes[:-1]) / 2
    for node in nodes.tolist():
        point = (node * tokens).detach().requires_grad_()
        (gradient,) = torch.autograd.grad(logit(model, block, point)[0].sum(), point)
        sums += gradient / len(nodes)
    scores = (sums * tokens).sum(-1).detach()
    assert torch.allclose(scores.sum(1), change.detach(), atol=1e-3)
    assert torch.allclose(e.scores, grid(scores), atol=1e-3)
    smooth = mhex.explain(model, X, "cdam-smooth", 1, block=block, sigma=0.0, n=2).scores
    assert torch.allclose(smooth, mhex.explain(model, X, "cdam", 1, block=block).scores, atol=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_the_last_block_by_its_number_is_the_default(model: nn.Module, method: str) -> None:
    usual = mhex.explain(model, X, method, 1).scores
    assert torch.equal(mhex.explain(model, X, method, 1, block=DEPTH).scores, usual)
    assert not torch.allclose(mhex.explain(model, X, method, 1, block=1).scores, usual, atol=1e-6)


@pytest.mark.parametrize("block", [0, 4, -1, True, "2"])
def test_blocks_that_the_model_does_not_have(model: nn.Module, block: Any) -> None:
    with pytest.raises(ArgumentError, match="block"):
        mhex.explain(model, X, "attention", block=block)


def test_closed_form_is_of_the_last_block(model: nn.Module) -> None:
    with pytest.raises(ArgumentError, match="Expected block=None with closed_form=True"):
        mhex.explain(model, X, "cdam", 1, block=2, closed_form=True)


def test_a_race_takes_blocks_beside_all_methods(model: nn.Module) -> None:
    """Methods by name may stand beside `"all"`, each with options of its own."""
    early: Any = [("attention", {"block": 1}), ("cdam", {"block": 2})]
    report = mhex.evaluate(model.float(), X.float(), ["all", *early], ["compactness"], controls=False)
    model.double()
    assert {"attention", "cdam", "gae"} <= set(report.methods)
    assert sum("block=" in name for name in report.methods) == 2
