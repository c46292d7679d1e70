"""Every relevance rule against its formula in dense matrices, in float64, one small operation at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mhex.relevance import AlphaBeta, Epsilon, Gamma, absolute_rules, gradient_rules, relevance_rules
from mhex.relevance.linear_rules import Affine
from support.rule_comparison import LAYER_VARIANTS, PROJECTIONS, VARIANTS, Function, agree, handed_down

DOUBLE = {"dtype": torch.float64}


def numbers(*shape: int, seed: int = 3) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), **DOUBLE)


IMAGES, ROWS = numbers(2, 2, 5, 4), numbers(2, 3, 6)
KERNEL = numbers(3, 2, 3, 3, seed=4)
WEIGHT, BIAS = numbers(4, 6, seed=5), numbers(4, seed=6)
GROUPS, TIMES, CUBES, HEAD = numbers(6, 1, 2, 2), numbers(2, 3, 3), numbers(2, 1, 2, 2, 2), numbers(3, 18)


def batch_norm(channels: int) -> dict[str, Any]:
    """Settings of a batch norm in evaluation mode; some of its factors are negative."""
    gamma = numbers(channels, seed=8)
    assert float(gamma.min()) < 0 < float(gamma.max())
    return {
        "running_mean": numbers(channels, seed=7),
        "running_var": numbers(channels, seed=9).square() + 0.5,
        "weight": gamma,
        "bias": numbers(channels, seed=10),
    }


def conv(**options: Any) -> Function:
    return lambda x: F.conv2d(x, KERNEL, BIAS[:3], **options)


NORM3 = batch_norm(3)
LAYERS: dict[str, tuple[Function, Tensor]] = {
    "linear": (lambda x: F.linear(x, WEIGHT, BIAS), ROWS),
    "linear-no-bias": (lambda x: F.linear(x, WEIGHT), ROWS),
    "addmm": (lambda x: torch.addmm(BIAS, x[:, 0], WEIGHT.t()), ROWS),
    "matmul": (lambda x: x @ WEIGHT.t(), ROWS),
    "mm": (lambda x: torch.mm(x[:, 0], WEIGHT.t()), ROWS),
    "conv": (conv(), IMAGES),
    "conv-stride-padding": (conv(stride=2, padding=1), IMAGES),
    "conv-stride-leftover": (conv(stride=(3, 2), padding=(0, 1)), IMAGES),
    "conv-same": (conv(padding="same"), IMAGES),
    "conv-same-dilated": (conv(padding="same", dilation=2), IMAGES),
    "conv-valid-dilated": (conv(padding="valid", dilation=(2, 1)), IMAGES),
    "conv-depthwise": (lambda x: F.conv2d(x, KERNEL[:2, :1], None, padding=1, groups=2), IMAGES),
    "conv-groups": (lambda x: F.conv2d(x, GROUPS, BIAS.repeat(2)[:6], groups=2), IMAGES),
    "conv1d": (lambda x: F.conv1d(x, TIMES, BIAS[:2], stride=2, padding=1), ROWS),
    "conv3d": (lambda x: F.conv3d(x[:, None], CUBES, BIAS[:2]), IMAGES),
    "conv-norm": (lambda x: F.batch_norm(F.conv2d(x, KERNEL, BIAS[:3]), **NORM3), IMAGES),
    "conv-norm-no-bias": (lambda x: F.batch_norm(F.conv2d(x, KERNEL), **NORM3, eps=0.1), IMAGES),
    "linear-norm": (lambda x: F.batch_norm(F.linear(x[:, 0], WEIGHT[:3], BIAS[:3]), **NORM3), ROWS),
    "conv-used-twice": (lambda x: F.batch_norm(y := F.conv2d(x, KERNEL), **NORM3) + y, IMAGES),
    "two-layers": (lambda x: F.conv2d(F.conv2d(x, KERNEL, BIAS[:3], padding=1), KERNEL.transpose(0, 1)), IMAGES),
    "conv-relu-linear": (lambda x: F.linear(F.relu(F.conv2d(x, KERNEL)).flatten(1), HEAD), IMAGES),
}


@pytest.mark.parametrize("name", LAYERS)
def test_rules_of_layers_against_dense_matrices(name: str) -> None:
    agree(*LAYERS[name], LAYER_VARIANTS, 1e-9)


def test_contributions_of_one_sign_alone() -> None:
    """Alpha-beta: where nothing is negative, or nothing positive, nothing is divided by rounding."""
    positive = {name: LAYER_VARIANTS[name] for name in ("alpha1", "alpha2", "alpha2-large", "alpha2-zero")}
    agree(lambda x: F.linear(F.relu(x), WEIGHT.abs(), BIAS), ROWS, positive)
    negative = {name: LAYER_VARIANTS[name] for name in ("alpha2", "alpha2-large", "alpha2-zero")}
    agree(lambda x: F.linear(F.relu(x), -WEIGHT.abs(), BIAS), ROWS, negative)


PAIRS = numbers(2, 2, 3, 4)  # a and b of two samples
NORM2 = batch_norm(2)
QKV = numbers(2, 3, 2, 4, 3)  # three parts of two samples: two heads, four tokens, width three
ATTENTION_BIAS, QUERY, GATED = numbers(1, 2, 4, 4), numbers(1, 2, 1, 3), numbers(5, 4)
KEEP = torch.tensor([[1, 1, 0, 1], [1, 1, 1, 1], [0, 1, 1, 0], [1, 0, 0, 0]]).bool()


def both(function: Any) -> Function:
    return lambda x: function(*x.unbind(1))


def attention(**options: Any) -> Function:
    return lambda x: F.scaled_dot_product_attention(*x.unbind(1), **options)


def alone(name: str) -> Function:
    return lambda x: getattr(F, name)(x)


def grouped(x: Tensor) -> Tensor:
    q = torch.cat([x[:, 0], x[:, 1]], 1)  # four heads of queries, two of keys and values
    return F.scaled_dot_product_attention(q, x[:, 1], x[:, 2], enable_gqa=True)


def written_out(x: Tensor) -> Tensor:
    q, k, v = x.unbind(1)
    return (q @ k.mT).softmax(-1) @ v


OPERATIONS: dict[str, tuple[Function, Tensor]] = {
    "add": (both(lambda a, b: a + b), PAIRS),
    "add-broadcast": (both(lambda a, b: a + b[:, :1]), PAIRS),
    "add-alpha": (both(lambda a, b: torch.add(a, b, alpha=0.3)), PAIRS),
    "add-constant": (lambda x: x + PAIRS[:1, :1] * 0.7, PAIRS),
    "add-number": (lambda x: 2.5 + x, PAIRS),
    "add-itself": (lambda x: x + x, PAIRS),
    "add-three": (both(lambda a, b: (a + b) + a), PAIRS),
    "subtract": (both(lambda a, b: a - b), PAIRS),
    "subtract-alpha": (both(lambda a, b: torch.sub(a, b, alpha=0.3)), PAIRS),
    "subtract-from-number": (lambda x: 1.5 - x, PAIRS),
    "subtract-constant": (lambda x: x - PAIRS[:1, :1] * 0.7, PAIRS),
    "negate": (lambda x: -x + 0.5 * x, PAIRS),
    "scale": (lambda x: x * PAIRS[1, :, :1] + 0.1 * x, PAIRS),
    "divide": (lambda x: x / -3.0 + x, PAIRS),
    "product": (both(lambda a, b: a * b), PAIRS),
    "product-broadcast": (both(lambda a, b: a * b[:, :, :1]), PAIRS),
    "gated-mlp": (lambda x: F.linear(F.silu(F.linear(x, WEIGHT[:, :4])) * F.linear(x, WEIGHT[:, 2:]), GATED), PAIRS),
    "gate": (lambda x: x * F.linear(x, WEIGHT[:, :4]).sigmoid(), PAIRS),
    "matmul": (both(lambda a, b: a @ b.mT), PAIRS),
    "bmm": (both(lambda a, b: torch.bmm(a, b.mT)), PAIRS),
    "einsum": (both(lambda a, b: torch.einsum("bij,bkj->bik", a, b)), PAIRS),
    "mean": (lambda x: x.mean((2, 3)), PAIRS),
    "sum": (lambda x: x.sum(2), PAIRS),
    "avg_pool": (lambda x: F.avg_pool2d(x, 2, stride=1, padding=1), PAIRS),
    "adaptive": (lambda x: F.adaptive_avg_pool2d(x, (2, 3)), PAIRS),
    "max_pool": (lambda x: F.max_pool2d(x, 2, stride=1), PAIRS),
    "upsample": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), PAIRS),
    "concatenate": (lambda x: torch.cat([x[:, 1:], PAIRS[:1, :1].expand(len(x), -1, -1, -1), x * 0.5], 1), PAIRS),
    "routes": (lambda x: torch.stack(x.roll(1, 2).transpose(2, 3).chunk(2, 1), 2).flatten(1)[:, 3:].flip(1), PAIRS),
    "layer_norm": (lambda x: F.layer_norm(x, (4,), PAIRS[0, 0, 0], PAIRS[0, 0, 1]), PAIRS),
    "layer_norm-plain": (lambda x: F.layer_norm(x, (4,), eps=0.1), PAIRS),
    "batch_norm-alone": (lambda x: F.batch_norm(x, **NORM2), PAIRS),
    **{
        name: (alone(name), PAIRS * 2)
        for name in ("relu", "gelu", "silu", "tanh", "leaky_relu", "elu", "mish", "hardswish", "relu6", "hardtanh")
    },
    "gelu-tanh": (lambda x: F.gelu(x, approximate="tanh"), PAIRS * 2),
    "attention": (attention(), QKV),
    "attention-scale": (attention(scale=1.7), QKV),
    "attention-causal": (attention(is_causal=True), QKV),
    "attention-mask": (attention(attn_mask=KEEP), QKV),
    "attention-bias": (attention(attn_mask=ATTENTION_BIAS), QKV),
    "attention-grouped": (grouped, QKV),
    "attention-learned-query": (
        lambda x: F.scaled_dot_product_attention(QUERY.expand(len(x), -1, -1, -1), x[:, 1], x[:, 2]),
        QKV,
    ),
    "attention-written-out": (written_out, QKV),
    "attention-residual": (lambda x: x[:, 2] + attention()(x), QKV),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_rules_of_operations_against_second_formulas(name: str) -> None:
    agree(*OPERATIONS[name], VARIANTS, 1e-9)


PACKED, OUT, MLP = numbers(18, 6, seed=50), numbers(6, 6, seed=51), numbers(6, 6, seed=52)
TURN = numbers(3, 6, seed=53)
NORM6 = batch_norm(6)


def _projected(x: Tensor, attend: Any) -> Tensor:
    """A layer, attention between its projections, and another layer."""
    q, k, v = F.linear(F.linear(x, MLP, BIAS.repeat(2)[:6]), PACKED).chunk(3, -1)
    return F.linear(F.linear(attend(q, k, v), OUT), MLP)


def _in_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.reshape(len(x), 3, 2, 3).transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def _convolved(x: Tensor) -> Tensor:
    """Projections that are convolutions with batch norms, as in LeViT."""
    maps = F.linear(x, MLP).mT
    parts = [F.batch_norm(F.conv1d(maps, PACKED[i : i + 6, :, None]), **NORM6).mT for i in (0, 6, 12)]
    return F.linear(F.dropout(_in_heads(*parts), training=False), OUT)


PROJECTED: dict[str, Function] = {
    "fused": lambda x: _projected(x, _in_heads),
    "written out": lambda x: _projected(x, lambda q, k, v: F.dropout((q @ k.mT + 0.1).softmax(-1), 0.1, False) @ v),
    "einsum": lambda x: _projected(x, lambda q, k, v: torch.bmm(torch.einsum("bid,bjd->bij", q, k).softmax(-1), v)),
    "rotary": lambda x: _projected(x, lambda q, k, v: _in_heads(q * TURN + q.flip(-1) * 0.3, k * TURN, v)),
    "normed": lambda x: _projected(x, lambda q, k, v: _in_heads(F.layer_norm(q, (6,)), F.layer_norm(k, (6,)), v)),
    "convolved": _convolved,
    "no attention": lambda x: F.linear(F.linear(F.linear(x, MLP), OUT).softmax(-1) * F.linear(x, OUT), MLP),
}


@pytest.mark.parametrize("name", PROJECTED)
def test_layers_around_attention_have_a_rule_of_their_own(name: str) -> None:
    """Whatever form attention has; a softmax alone is no attention."""
    agree(PROJECTED[name], ROWS, {"projections": PROJECTIONS}, 1e-9)
    if name == "no attention":
        return
    relevance = numbers(2, 3, 6, seed=54)
    epsilon, gamma = (
        handed_down(composite, PROJECTED[name], ROWS, relevance)[0]
        for composite in (PROJECTIONS.composite, gradient_rules(Gamma(0.25, 1e-6)))
    )
    assert float((epsilon - gamma).abs().max()) > 0.01 * float(gamma.abs().max())


@pytest.mark.parametrize("weight", [None, numbers(6, seed=21)], ids=["plain", "weight"])
def test_rms_norm(weight: Tensor | None) -> None:
    """Gradient flow: x / rms with rms a constant, so that all relevance of an output goes to its input.

    absLRP: the same constant, and that of |x|, which is the same, for the absolute operation.
    """
    norm = nn.RMSNorm(6, eps=0.01, elementwise_affine=weight is not None, **DOUBLE)
    if weight is not None:
        norm.weight.data = weight
    norm.requires_grad_(False)
    relevance = numbers(2, 3, 6, seed=22)
    assert torch.allclose(handed_down(gradient_rules(), norm, ROWS, relevance)[0], relevance, 1e-12)
    y = ROWS / (ROWS.square().mean(-1, keepdim=True) + 0.01).sqrt() * (1 if weight is None else weight)
    kept = y.clamp_min(0) * relevance / (y.abs() + 1e-9)
    wanted = kept / kept.abs().sum((1, 2), keepdim=True)
    assert torch.allclose(handed_down(absolute_rules(), norm, ROWS, relevance)[0], wanted, 1e-12)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_group_norm(groups: int) -> None:
    """Gradient flow: as layer norms of the groups, one by one; relevance flow: passed on."""
    x, weight, bias = numbers(2, 4, 3, 2, seed=30), numbers(4, seed=31), numbers(4, seed=32)
    relevance = numbers(2, 4, 3, 2, seed=33)
    size = 4 // groups

    def one_by_one(x: Tensor) -> Tensor:
        parts = [F.layer_norm(part, part.shape[1:], eps=0.01) for part in x.split(size, 1)]
        return torch.cat(parts, 1) * weight.view(-1, 1, 1) + bias.view(-1, 1, 1)

    found, lost = handed_down(gradient_rules(), lambda x: F.group_norm(x, groups, weight, bias, 0.01), x, relevance)
    wanted, absorbed = handed_down(gradient_rules(), one_by_one, x, relevance)
    assert torch.allclose(found, wanted, 1e-10, 1e-12)
    assert torch.allclose(lost, absorbed, 1e-10)
    composite = relevance_rules(Epsilon())
    passed, _ = handed_down(composite, lambda x: F.group_norm(x, groups, weight, bias), x, relevance)
    assert torch.equal(passed, relevance)


def test_zero_has_no_relevance_and_does_no_harm() -> None:
    """Activations at 0, layers of zeros, and rows that attend to nothing."""
    x = PAIRS.clone()
    x[0] = 0
    relevance = numbers(2, 2, 3, 4, seed=5)
    for name, variant in VARIANTS.items():
        for operation in ("gelu", "relu", "tanh", "silu", "hardswish", "mish", "elu"):
            found, _ = handed_down(variant.composite, alone(operation), x, torch.where(x == 0, 0.0, relevance))
            assert bool(torch.isfinite(found).all()), (name, operation)
            assert float(found[0].abs().max()) == 0
        found, _ = handed_down(variant.composite, lambda x: F.linear(x, WEIGHT[:, :4] * 0), x, relevance)
        assert float(found.abs().max()) == 0, name
        hidden = torch.ones(4, 4, dtype=torch.bool)
        hidden[2] = False
        found, _ = handed_down(variant.composite, attention(attn_mask=hidden), QKV, numbers(2, 2, 4, 3, seed=6))
        assert bool(torch.isfinite(found).all()), name


@pytest.mark.parametrize("alpha", [1.0, 2.0, 1.5])
@pytest.mark.parametrize("flow", ["relevance", "gradient"])
@pytest.mark.parametrize("convolved", [False, True])
def test_alpha_beta_of_wide_layers(alpha: float, flow: str, convolved: bool) -> None:
    """With many contributions of both signs the sums come from those of sizes; with few, one by one: both the same."""
    shares = AlphaBeta(alpha, 0.0)
    composite = relevance_rules(shares) if flow == "relevance" else gradient_rules(shares, shares)
    if convolved:
        x, weight, bias = numbers(2, 8, 5, 4), numbers(6, 8, 3, 3, seed=41), numbers(6, seed=42)
        layer: Function = lambda x: F.conv2d(x, weight, bias, padding=1)  # noqa: E731
        geometry: tuple[Any, ...] | None = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    else:
        x, weight, bias = numbers(2, 3, 60), numbers(5, 60, seed=41), numbers(5, seed=42)
        layer, geometry = (lambda x: F.linear(x, weight, bias)), None
    affine = Affine(x, weight, bias, geometry)
    sums = affine.both_sums(layer(x))
    assert sums is not None
    assert torch.allclose(sums[0], affine.one_sign(True), 1e-12)
    assert torch.allclose(sums[1], affine.one_sign(False), 1e-12)
    relevance = numbers(*layer(x).shape, seed=43)
    wanted = sum(
        share * affine.one_sign_back(relevance / affine.one_sign(positive), positive)
        for share, positive in ((alpha, True), (1 - alpha, False))
    )
    assert torch.allclose(handed_down(composite, layer, x, relevance)[0], wanted, 1e-10, 1e-12)


def test_contributions_of_nearly_one_sign_are_not_taken_as_a_difference() -> None:
    x, weight = numbers(1, 60).abs(), numbers(2, 60, seed=41).abs()
    weight[1, 0] = -1e-6
    assert Affine(x, weight, None).both_sums(F.linear(x, weight)) is None
    x[0, 1] = -1e-6
    relevance = torch.ones(1, 2, **DOUBLE)
    found, _ = handed_down(relevance_rules(AlphaBeta(2.0, 0.0)), lambda x: F.linear(x, weight), x, relevance)
    assert torch.allclose(found.sum(), torch.tensor(2.0, **DOUBLE), 1e-12)
    assert float(found[0, 0]) < 0  # the one negative contribution to the second neuron
