"""The block's formulas, on what hosts give it."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import mhex
from mhex.errors import CaptureError
from mhex.heads.explainer_block import ExplainerBlock, pool
from mhex.heads.predictors import watched
from support.hosts import CLASSES, MAIN, attached, host, inputs, run, stir

pytestmark = pytest.mark.filterwarnings("ignore:The heads have:mhex.errors.MhexWarning")
SHAPES = {"map": (2, 6, 3, 5), "tokens": (2, 7, 6), "last": (2, 3, 5, 6)}


def made(shape="map", **options):
    torch.manual_seed(1)
    block = ExplainerBlock(
        6, CLASSES, options.pop("preset", "paper"), channels_last=shape == "last", **options
    ).double()
    x, r = torch.randn(2, *SHAPES[shape], dtype=torch.float64)
    return block, x, r


def explicit_pool(z, shape, keep=None):
    """Mean over positions, written out."""
    rows = []
    for n, sample in enumerate(z):
        columns = sample.flatten(1).T if shape == "map" else sample.reshape(-1, sample.shape[-1])
        if keep is not None:
            columns = columns[keep[n]]
        rows.append(columns.mean(0) if len(columns) else torch.zeros(columns.shape[1], dtype=z.dtype))
    return torch.stack(rows)


def broadcast(g, shape):
    return g[:, :, None, None] if shape == "map" else g[:, None] if shape == "tokens" else g[:, None, None]


@pytest.mark.parametrize("target", ["shortcut", "sum"])
@pytest.mark.parametrize("preset", ["paper", "identity", "probe"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_block_computes_the_published_equations(shape, preset, target):
    block, x, r = made(shape, preset=preset, gate_target=target)
    nn.init.normal_(block.w1.weight)
    joined, seen = block(x, r)
    w1, w2 = block.w1.weight, block.w2.weight
    h = explicit_pool(x + r, shape).clamp_min(0)
    u = h @ w1.T
    kappa, strength = (2 if preset == "identity" else 1), (0 if preset == "probe" else 1)
    g = (1 - strength) + strength * kappa / (1 + torch.exp(-u))
    spread = broadcast(g, shape)
    assert torch.allclose(seen.logits, h @ (w2 @ w1).T, rtol=1e-10)
    assert torch.allclose(seen.gate, g, rtol=1e-12)
    assert torch.allclose(joined, spread * (x + r) if target == "sum" else spread * x + r, rtol=1e-12)
    assert torch.allclose(seen.features @ block.equivalent_matrix().T, seen.logits, rtol=1e-10)


@pytest.mark.parametrize("shape", SHAPES)
def test_relu_before_pooling(shape):
    block, x, r = made(shape, relu="pre")
    _, seen = block(x, r)
    h = explicit_pool((x + r).clamp_min(0), shape)
    assert torch.allclose(seen.logits, h @ block.equivalent_matrix().T, rtol=1e-10)


@pytest.mark.parametrize("target", ["shortcut", "sum"])
@pytest.mark.parametrize("shape", SHAPES)
def test_separate_coupling(shape, target):
    block, x, r = made(shape, coupling="separate", gate_target=target)
    joined, seen = block(x, r)
    gated = joined if target == "sum" else broadcast(seen.gate, shape) * x
    assert torch.allclose(seen.logits, explicit_pool(gated, shape) @ block.w2.weight.T, rtol=1e-10)
    assert torch.equal(block.equivalent_matrix(), block.w2.weight)


def test_head_only_has_no_gate():
    block, x, r = made(coupling="head_only")
    joined, seen = block(x, r)
    assert torch.equal(joined, x + r)
    assert [name for name, _ in block.named_parameters()] == ["w2.weight"]
    assert torch.allclose(seen.logits, explicit_pool(x + r, "map").clamp_min(0) @ block.w2.weight.T, rtol=1e-10)


def test_gate_range_and_dead_input():
    """Invariant 2."""
    block, x, r = made()
    assert bool(((block(x, r)[1].gate > 0) & (block(x, r)[1].gate < 1)).all())
    _, seen = block(-x.abs(), -r.abs())
    assert not bool(seen.logits.any())
    assert bool((seen.gate == 0.5).all())


def test_masked_pooling():
    block, x, r = made("tokens")
    keep = torch.tensor([[1, 1, 1, 0, 1, 0, 0], [0] * 7]).bool()
    _, seen = block(x, r, keep)
    assert torch.allclose(seen.pooled, explicit_pool(x + r, "tokens", keep), rtol=1e-12)
    assert bool(torch.isfinite(seen.logits).all())
    assert not bool(seen.logits[1].any())
    z = (x + r).requires_grad_()
    (gradient,) = torch.autograd.grad(pool(z, 2, keep).sum(), z)
    assert not bool(gradient[~keep].any())


def test_one_position_and_one_sample():
    block = ExplainerBlock(6, CLASSES, "paper")
    joined, seen = block(torch.randn(1, 6, 1, 1), torch.randn(1, 6, 1, 1))
    assert joined.shape == (1, 6, 1, 1)
    assert seen.logits.shape == (1, CLASSES)


def test_wrong_width():
    with pytest.raises(CaptureError, match="6 channels"):
        ExplainerBlock(6, CLASSES)(torch.randn(2, 5, 3, 3), torch.randn(2, 5, 3, 3))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_pools_in_full(dtype):
    """A mean over 4096 positions near 1 loses its digits in half precision."""
    torch.manual_seed(0)
    block = ExplainerBlock(6, CLASSES, "paper")
    x, r = (1 + 0.01 * torch.randn(2, 2, 6, 64, 64)).to(dtype)
    joined, seen = block(x, r)
    assert joined.dtype == dtype
    assert seen.logits.dtype == seen.gate.dtype == torch.float32
    h = explicit_pool(x.double() + r.double(), "map").clamp_min(0)
    assert torch.allclose(seen.pooled.double(), h, rtol=1e-5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _, cast = block(x.float(), r.float())
    assert torch.allclose(cast.logits.double(), h @ block.equivalent_matrix().double().T, rtol=1e-4)


@pytest.mark.parametrize("name", MAIN)
@pytest.mark.slow
def test_head_identity_on_hosts(name):
    """Invariant 1: class scores are the equivalent matrix times the ReLU of the pooled sum."""
    scaffold, batch = stir(attached(name, dtype=torch.float64, preset="paper")), inputs(name, dtype=torch.float64)
    model = scaffold.model
    with watched(model) as see:
        call = see(batch)
    keep = batch["attention_mask"].bool() if isinstance(batch, dict) else None
    for junction, seen in call.blocks.items():
        shape = "map" if seen.shortcut.dim() == 4 else "tokens"
        h = F.relu(explicit_pool(seen.shortcut + seen.branch, shape, keep))
        assert torch.allclose(call.logits[junction], h @ scaffold.equivalent_matrix(junction).T, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["hf_bert", "hf_roberta", "hf_distilbert"])
@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.slow
def test_padding_changes_no_head(name, special, attention):
    """Invariant 18."""
    model, batch = host(name, torch.float64), inputs(name)
    model.set_attn_implementation(attention)
    scaffold = stir(mhex.attach(model, CLASSES, preset="paper", exclude_special=special))
    run(model, batch)
    wanted = scaffold.head_logits
    longer = {key: F.pad(value, (0, 6)) for key, value in batch.items()}
    run(model, longer)
    for junction, logits in scaffold.head_logits.items():
        assert torch.allclose(logits, wanted[junction], rtol=1e-9, atol=1e-12)
    single = {key: value[1:2, :5] for key, value in batch.items()}
    run(model, single)
    for junction, logits in scaffold.head_logits.items():
        assert torch.allclose(logits[0], wanted[junction][1], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["hf_bert", "timm_vit"])
def test_special_tokens_are_left_out_of_the_pooling(name):
    model = attached(name, dtype=torch.float64, exclude_special=True).model
    batch = inputs(name, dtype=torch.float64)
    with watched(model) as see:
        seen = next(iter(see(batch).blocks.values()))
    z = seen.shortcut + seen.branch
    if name == "hf_bert":
        words = [z[n, 1 : length - 1].mean(0) for n, length in enumerate([9, 5, 7])]
        assert torch.allclose(seen.pooled, torch.stack(words), rtol=1e-10)
    else:
        assert torch.allclose(seen.pooled, z[:, 1:].mean(1), rtol=1e-10)


@pytest.mark.parametrize("name", MAIN)
def test_batch_equals_samples_and_classes_permute(name):
    """Invariant 19."""
    scaffold, batch = stir(attached(name, dtype=torch.float64, preset="paper")), inputs(name, dtype=torch.float64)
    model = scaffold.model
    run(model, batch)
    wanted = scaffold.head_logits
    for n in range(2):
        one = {k: v[n : n + 1] for k, v in batch.items()} if isinstance(batch, dict) else batch[n : n + 1]
        run(model, one)
        for junction, logits in scaffold.head_logits.items():
            assert torch.allclose(logits[0], wanted[junction][n], rtol=1e-8, atol=1e-12)
    order = torch.tensor([2, 0, 3, 1])
    with torch.no_grad():
        for block in scaffold.heads.blocks:
            block.w2.weight.copy_(block.w2.weight[order])
    run(model, batch)
    for junction, logits in scaffold.head_logits.items():
        assert torch.allclose(logits, wanted[junction][:, order], rtol=1e-9, atol=1e-12)
