"""The rule engine: every form of an operation reaches its rule, values stay, and what has no rule is reported."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import mhex
from mhex.capture.hooks import FunctionTap
from mhex.capture.operations import OPERATIONS, OUT_OF_PLACE, name_of_operation
from mhex.errors import CaptureError, UnsupportedModelError
from mhex.relevance import (
    AlphaBeta,
    Composite,
    Epsilon,
    Flow,
    absolute_rules,
    gradient_rules,
    guided_rules,
    relevance_rules,
)
from support.rule_comparison import handed_down, ruled

X = torch.randn(2, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
SQUARE = torch.randn(8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
KERNEL = torch.randn(4, 3, 3, 3, dtype=torch.float64)
Form = Callable[[Tensor], Any]


class Answer(NamedTuple):
    logits: Tensor
    rest: Any


def fixed(module: nn.Module) -> nn.Module:
    return module.double().eval().requires_grad_(False)


def in_place(method: str, *args: Any) -> Form:
    """Written into a copy: torch forbids writing into a leaf."""

    def write(x: Tensor) -> Tensor:
        y = x.clone()
        getattr(y, method)(*args)
        return y

    return write


def augmented(sign: str) -> Form:
    def write(x: Tensor) -> Tensor:
        y = x.clone()
        if sign == "+":
            y += SQUARE
        elif sign == "-":
            y -= SQUARE
        elif sign == "*":
            y *= SQUARE
        else:
            y /= 2.0
        return y

    return write


FORMS: dict[str, list[Form]] = {
    "linear": [
        fixed(nn.Linear(8, 4)),
        lambda x: F.linear(x, SQUARE),
        lambda x: torch.addmm(SQUARE[0], x[0, 0], SQUARE),
        lambda x: x @ SQUARE,
        lambda x: x.matmul(SQUARE),
        lambda x: torch.matmul(x, SQUARE),
        lambda x: torch.mm(x[0, 0], SQUARE),
        lambda x: x[0, 0].mm(SQUARE),
    ],
    "convolution": [
        fixed(nn.Conv2d(3, 4, 3)),
        fixed(nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect")),
        lambda x: F.conv2d(x, KERNEL),
        lambda x: torch.conv2d(x, KERNEL),
        lambda x: F.conv1d(x[:, 0], KERNEL[:, 0].repeat(1, 3, 1)[:, :8]),
        lambda x: F.conv3d(x[:, None], KERNEL[:, None]),
    ],
    "layer_norm": [fixed(nn.LayerNorm(8)), lambda x: F.layer_norm(x, (8,)), lambda x: torch.layer_norm(x, (8,))],
    "rms_norm": [fixed(nn.RMSNorm(8)), lambda x: F.rms_norm(x, (8,)), lambda x: torch.rms_norm(x, (8,))],
    "group_norm": [fixed(nn.GroupNorm(3, 3)), lambda x: F.group_norm(x, 1), lambda x: torch.group_norm(x, 1)],
    "batch_norm": [
        fixed(nn.BatchNorm2d(3)),
        lambda x: F.batch_norm(x, torch.zeros(3).double(), torch.ones(3).double()),
    ],
    "softmax": [lambda x: x.softmax(-1), lambda x: torch.softmax(x, -1), nn.Softmax(-1), lambda x: F.softmax(x, -1)],
    "activation": [
        *(nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.SiLU(inplace=True), nn.ReLU(), nn.ReLU(inplace=True), nn.Tanh()),
        *(nn.ReLU6(), nn.ReLU6(inplace=True), nn.LeakyReLU(), nn.LeakyReLU(inplace=True), nn.ELU(), nn.Mish()),
        *(nn.Hardswish(), nn.Hardswish(inplace=True), nn.Hardtanh(), nn.ELU(inplace=True), nn.Mish(inplace=True)),
        *(lambda x: x.relu(), lambda x: torch.relu(x), lambda x: F.relu(x, inplace=True), lambda x: F.relu(x, True)),
        *(lambda x: torch.tanh(x), lambda x: x.tanh(), lambda x: F.tanh(x), lambda x: F.silu(x, True)),
        *(in_place("relu_"), in_place("tanh_"), lambda x: torch.relu_(x.clone()), lambda x: F.relu_(x.clone())),
        *(lambda x: torch.tanh_(x.clone()), lambda x: F.leaky_relu_(x.clone()), lambda x: F.elu_(x.clone())),
        lambda x: F.hardtanh_(x.clone()),
    ],
    "length": [lambda x: torch.rsqrt(x + 10.0), lambda x: (x + 10.0).rsqrt()],
    "gate": [
        *(nn.Sigmoid(), lambda x: x.sigmoid(), lambda x: torch.sigmoid(x), lambda x: F.sigmoid(x), nn.Hardsigmoid()),
        *(in_place("sigmoid_"), nn.Hardsigmoid(inplace=True), lambda x: torch.sigmoid_(x.clone())),
    ],
    "add": [
        *(lambda x: x + SQUARE, lambda x: SQUARE + x, lambda x: 1 + x, lambda x: torch.add(x, SQUARE)),
        *(lambda x: x.add(SQUARE, alpha=2), in_place("add_", SQUARE), augmented("+"), lambda x: x.__radd__(SQUARE)),
    ],
    "subtract": [
        *(lambda x: x - SQUARE, lambda x: SQUARE - x, lambda x: 1 - x, lambda x: torch.sub(x, SQUARE)),
        *(
            lambda x: torch.rsub(x, SQUARE),
            in_place("sub_", SQUARE),
            augmented("-"),
            lambda x: torch.subtract(x, SQUARE),
        ),
        *(lambda x: x.subtract(SQUARE), in_place("subtract_", SQUARE)),
    ],
    "multiply": [
        *(lambda x: x * SQUARE, lambda x: SQUARE * x, lambda x: 2 * x, lambda x: torch.mul(x, SQUARE)),
        *(in_place("mul_", SQUARE), augmented("*"), lambda x: torch.multiply(x, 2), lambda x: x.multiply(2)),
        in_place("multiply_", 2),
    ],
    "divide": [
        *(lambda x: x / 2, lambda x: torch.div(x, SQUARE), lambda x: x.div(2), in_place("div_", 2), augmented("/")),
        *(lambda x: torch.divide(x, 2), lambda x: x.true_divide(2), in_place("divide_", 2)),
    ],
    "negate": [lambda x: -x, lambda x: torch.neg(x), lambda x: x.neg(), lambda x: torch.negative(x), in_place("neg_")],
    "matmul": [
        *(lambda x: x @ x, lambda x: torch.matmul(x, x), lambda x: x.matmul(x), lambda x: torch.bmm(x[0], x[1])),
        *(lambda x: x[0].bmm(x[1]), lambda x: torch.mm(x[0, 0], x[0, 1]), lambda x: SQUARE @ x),
        *(lambda x: torch.einsum("bcij,bcjk->bcik", x, x), lambda x: torch.einsum("bcij,jk->bcik", x, SQUARE)),
    ],
    "pool": [
        *(lambda x: x.mean(1), lambda x: torch.mean(x, 1), lambda x: x.sum(-1), lambda x: torch.sum(x, -1)),
        *(nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Upsample(scale_factor=2), lambda x: F.avg_pool2d(x, 2)),
    ],
    "concatenate": [
        lambda x: torch.cat([x, x]),
        lambda x: torch.concat([x, x], 1),
        lambda x: torch.concatenate([x, x]),
    ],
    "attention": [lambda x: F.scaled_dot_product_attention(x, x, x)],
}


@pytest.mark.parametrize(
    ("name", "form"),
    [pytest.param(name, form, id=f"{name}-{i}") for name, forms in FORMS.items() for i, form in enumerate(forms)],
)
def test_every_form_of_an_operation_reaches_its_rule(name: str, form: Form) -> None:
    seen: list[Any] = []

    def rule(flow: Flow, operation: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(operation)
        return operation(*args, **kwargs)

    wanted = form(X.clone())
    flow, point, y = ruled(Composite("gradient", {name: rule}), form, X)
    assert len(seen) == 1
    assert torch.equal(y, wanted)
    assert point.grad is None
    assert flow.replaced == {}


@pytest.mark.parametrize(
    "composite",
    [relevance_rules(Epsilon()), relevance_rules(AlphaBeta(2.0), "ratio"), gradient_rules(), absolute_rules()],
    ids=["relevance", "alphabeta", "gradient", "absolute"],
)
@pytest.mark.parametrize("name", FORMS)
def test_values_stay(name: str, composite: Composite) -> None:
    """And no form is taken for an operation without a rule; absLRP has none for group norms."""
    if name not in composite.rules and (name, composite.flow) == ("group_norm", "relevance"):
        with pytest.raises(UnsupportedModelError, match="group_norm"):
            ruled(composite, FORMS[name][0], X)
        return
    for form in FORMS[name]:
        wanted = form(X.clone())
        assert torch.allclose(ruled(composite, form, X)[2], wanted, 1e-12, 1e-12)


def test_every_operation_has_a_form_here() -> None:
    assert set(OPERATIONS.values()) == FORMS.keys()
    assert all(name_of_operation(out) for out in OUT_OF_PLACE.values())


def test_projections_inside_multi_head_attention_reach_their_rule() -> None:
    attention = fixed(nn.MultiheadAttention(8, 2, batch_first=True))
    shapes: list[Any] = []

    def rule(flow: Flow, operation: Any, x: Tensor, *args: Any) -> Tensor:
        shapes.append(tuple(x.shape))
        return operation(x, *args)

    x = X[:, :, 0]
    ruled(Composite("gradient", {"linear": rule}, partial=True), lambda x: attention(x, x, x, need_weights=False)[0], x)
    assert shapes == [(2, 3, 8)] * 2, "the packed projection of q, k and v, and the output projection; samples first"


# --- writing in place ------------------------------------------------------------------------------------------------


def _overwritten(x: Tensor) -> Tensor:
    y = F.linear(x, SQUARE)
    y.relu_()
    y += x
    y.mul_(0.5)
    return F.linear(F.silu(y, inplace=True), SQUARE) + y


def _fresh(x: Tensor) -> Tensor:
    y = F.silu((F.linear(x, SQUARE).relu() + x) * 0.5)
    return F.linear(y, SQUARE) + y


@pytest.mark.parametrize("composite", [relevance_rules(Epsilon()), gradient_rules(), absolute_rules()])
def test_writing_in_place_is_the_same_as_not(composite: Composite) -> None:
    """Also where the same tensor is read again after it was written into."""
    relevance = torch.randn(2, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    one, two = (handed_down(composite, function, X, relevance) for function in (_overwritten, _fresh))
    assert torch.allclose(one[0], two[0], 1e-12, 1e-14)
    assert torch.allclose(one[1], two[1], 1e-12, 1e-14)
    assert torch.equal(_overwritten(X.clone()), _fresh(X))


@pytest.mark.parametrize("composite", [relevance_rules(Epsilon()), gradient_rules(), absolute_rules()])
@pytest.mark.parametrize(
    "kind",
    [nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SiLU, nn.Mish, nn.Hardswish, nn.Hardtanh],
    ids=lambda k: k.__name__,
)
def test_activations_in_place_are_the_same_as_not(kind: Any, composite: Composite) -> None:
    """torch's modules say so by name or by place; the layer before must keep what it gave."""
    relevance = torch.randn(2, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(2))

    def between_layers(act: nn.Module) -> Form:
        return lambda x: F.linear(act(F.linear(x, SQUARE)), SQUARE)

    one, two = (handed_down(composite, between_layers(kind(inplace=b)), X, relevance) for b in (False, True))
    assert torch.equal(one[0], two[0])
    assert float(one[0].abs().max()) > 0


def test_dropout_in_place_hands_back_what_it_is_given() -> None:
    drop = nn.Dropout(0.5, inplace=True).eval()
    value = ruled(relevance_rules(Epsilon()), lambda x: F.linear(drop(drop(F.linear(x, SQUARE))), SQUARE), X)[2]
    assert torch.allclose(value, F.linear(F.linear(X, SQUARE), SQUARE), atol=1e-12)


@pytest.mark.parametrize(
    "write",
    [lambda y: y[:, 0].mul_(2), lambda y: y.__setitem__((slice(None), 0), 1.0), lambda y: y[:, :1].add_(1.0)],
    ids=["view-mul", "item", "view-add"],
)
@pytest.mark.parametrize("last", [False, True])
def test_writing_into_a_part_is_refused(write: Any, last: bool) -> None:
    """It would change what rules keep, or not be seen by what reads the whole."""

    def function(x: Tensor) -> Tensor:
        y = F.linear(x, SQUARE)
        write(y)
        return y if last else F.linear(y, SQUARE)

    with pytest.raises(UnsupportedModelError, match=r"into a part of a tensor|__setitem__"):
        ruled(relevance_rules(Epsilon()), function, X)


def test_writing_into_a_view_that_alone_is_read() -> None:
    def function(x: Tensor) -> Tensor:
        y = F.linear(x, SQUARE).flatten(2)
        y += 1
        return F.linear(y.relu_().reshape(2, 3, 8, 8), SQUARE)

    assert torch.allclose(ruled(relevance_rules(Epsilon()), function, X)[2], function(X), atol=1e-12)


def test_writing_into_one_of_several_views() -> None:
    """As models scale queries: keys and values are other parts, and not touched by it."""

    def function(x: Tensor) -> Tensor:
        q, k, v = (F.linear(x, SQUARE)[:, i] for i in range(3))
        q *= 0.5
        return F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], scale=1.0)

    def packed(x: Tensor) -> Tensor:
        y = F.linear(x, SQUARE)
        q, k, v = y[:, 0], y[:, 1], y[:, 2]
        q *= 0.5
        return F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], scale=1.0)

    start = X[:, :1]
    for composite in (relevance_rules(Epsilon()), gradient_rules(attention="shared")):
        wanted, got = (handed_down(composite, f, X, start)[0] for f in (function, packed))
        assert torch.allclose(got, wanted, 1e-9, 1e-12)


def test_other_writes_in_place_are_reported() -> None:
    for write in (lambda y: y.clamp_(max=1.0), lambda y: y.copy_(SQUARE.expand_as(y)), lambda y: y.zero_()):
        with pytest.raises(UnsupportedModelError, match=r"clamp_|copy_|zero_"):
            ruled(gradient_rules(), lambda x, write=write: F.linear(write(F.linear(x, SQUARE)), SQUARE), X)


def test_outputs_written_in_place() -> None:
    """The model's answer is what it has written, alone, in a tuple, in a dictionary or as an attribute."""

    def written(x: Tensor) -> Tensor:
        y = F.linear(x, SQUARE)
        y += 1
        y.mul_(2)
        return y

    for wrap, read in (
        (lambda y: y, lambda out: out),
        (lambda y: (y, None), lambda out: out[0]),
        (lambda y: {"logits": y}, lambda out: out["logits"]),
        (lambda y: Answer(y, None), lambda out: out.logits),
        (lambda y: SimpleNamespace(logits=y), lambda out: out.logits),
    ):
        flow = Flow(gradient_rules(), 2)
        with FunctionTap(lambda *_: None, flow):
            out = wrap(written(X.clone().requires_grad_()))
        assert torch.equal(read(flow.settled(out)), written(X.clone()))


# --- what has no rule ------------------------------------------------------------------------------------------------


def _odd(x: Tensor) -> Tensor:
    return torch.sin(x) + torch.sin(x).cumsum(-1) + torch.logsumexp(x, -1, keepdim=True)


@pytest.mark.parametrize("composite", [relevance_rules(Epsilon()), gradient_rules(), absolute_rules()])
def test_all_unknown_operations_are_reported_at_once(composite: Composite) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        ruled(composite, _odd, X)
    assert "cumsum (1 times), logsumexp (1 times), sin (2 times)" in str(caught.value)


def test_guided_backpropagation_leaves_others_alone() -> None:
    flow, point, y = ruled(guided_rules(), _odd, X)
    plain = X.clone().requires_grad_()
    assert torch.equal(torch.autograd.grad(y.sum(), point)[0], torch.autograd.grad(_odd(plain).sum(), plain)[0])
    assert not flow.unknown


@pytest.mark.parametrize("composite", [relevance_rules(Epsilon()), gradient_rules(), absolute_rules()])
@pytest.mark.parametrize(
    ("operation", "function"),
    [
        ("batch_norm", lambda x: F.batch_norm(x, None, None, training=True)),
        ("batch_norm", lambda x: F.batch_norm(x, SQUARE[0, :3].clone(), SQUARE[1, :3].square(), training=True)),
        ("batch_norm", lambda x: F.batch_norm(F.conv2d(x, KERNEL), None, None, training=True)),
        ("div", lambda x: SQUARE / x),
        ("div", lambda x: x / x.detach().requires_grad_()),
        ("div", lambda x: torch.div(x, 2, rounding_mode="trunc")),
        ("linear", lambda x: F.linear(x, SQUARE.clone().requires_grad_())),
        ("addmm", lambda x: torch.addmm(SQUARE, x[0, 0], SQUARE)),
        ("addmm", lambda x: torch.addmm(SQUARE[0], x[0, 0], SQUARE, alpha=2)),
        ("conv2d", lambda x: F.conv2d(x, KERNEL[:, :, :2], padding="same")),
        ("einsum", lambda x: torch.einsum("bcij,bcjk->bcik", [x, x])),
    ],
)
def test_forms_that_no_rule_serves_are_reported(operation: str, function: Form, composite: Composite) -> None:
    with pytest.raises(UnsupportedModelError, match=operation):
        ruled(composite, function, X)


def test_constants_need_no_rule() -> None:
    """Of the same functions in the graph, all are reported."""
    constant: Form = lambda x: x + torch.sin(SQUARE).cumsum(0)  # noqa: E731
    flow, _, y = ruled(relevance_rules(Epsilon()), constant, X)
    assert not flow.unknown
    assert torch.equal(y, constant(X))
    flow, _, y = ruled(relevance_rules(Epsilon()), lambda x: x * float(x.argmax() >= 0), X)
    assert not flow.unknown
    assert torch.equal(y, X)
    with pytest.raises(UnsupportedModelError, match=r"cumsum \(1 times\), sin \(1 times\)"):
        ruled(relevance_rules(Epsilon()), lambda x: torch.sin(x).cumsum(0), X)


def test_a_tensor_without_samples_is_refused() -> None:
    flow = Flow(relevance_rules(Epsilon()), 2)
    with pytest.raises(CaptureError, match="Expected a tensor of 2 samples"):
        flow.total(torch.ones(3, 5))


def test_samples_on_the_second_axis() -> None:
    """Inside blocks that are laid out (N, B, D), sums run over the samples all the same."""
    flow = Flow(relevance_rules(Epsilon()), 2)
    t = torch.arange(24.0).reshape(4, 2, 3)
    flow.turned = True
    assert torch.equal(flow.total(t), t.sum((0, 2)))
    assert torch.equal(flow.spread(torch.tensor([1.0, 2.0]), t) * t, t * torch.tensor([1.0, 2.0])[None, :, None])
    with flow.straight():
        assert torch.equal(flow.total(t), t.reshape(2, -1).sum(1))
    windows = torch.arange(12.0).reshape(4, 3)
    flow.turned = False
    assert torch.equal(flow.total(windows), torch.tensor([15.0, 51.0]))


def test_nothing_is_patched() -> None:
    plain = X.clone().requires_grad_()
    wanted = torch.autograd.grad(F.gelu(plain).sum(), plain)[0]
    with FunctionTap(lambda *_: None, Flow(relevance_rules(Epsilon()), 2)):
        y = F.gelu(plain)
    assert torch.equal(torch.autograd.grad(y.sum(), plain)[0], torch.ones_like(X))
    assert torch.equal(torch.autograd.grad(F.gelu(plain).sum(), plain)[0], wanted)


class Answers(TorchDispatchMode):
    """Counts how often numbers are asked of a device, which a GPU has to be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "composite", [absolute_rules(), relevance_rules(AlphaBeta(2.0))], ids=["absolute", "alphabeta"]
)
def test_masks_and_layers_are_asked_once_for_all_targets(composite: Composite) -> None:
    mask = torch.zeros(8, dtype=X.dtype).masked_fill(torch.arange(8) > 5, -torch.inf)
    _, point, y = ruled(composite, lambda x: ((x @ SQUARE) + mask).softmax(-1), X)
    counts = []
    for _ in range(3):
        with Answers() as answers:
            torch.autograd.grad(y, point, torch.ones_like(y), retain_graph=True)
        counts.append(answers.count)
    assert counts[0] > counts[1] == counts[2]


@pytest.mark.parametrize("method", ["lrp", "abslrp"])
def test_weights_of_half_precision_are_computed_with_in_float32(method: str) -> None:
    """Also where relevance arrives: pixels of bfloat16 would round it, and differences of maps would be lost."""
    torch.manual_seed(0)
    exact = timm.create_model("vit_tiny_patch16_224", num_classes=5, img_size=32, depth=2).eval().bfloat16().float()
    images = torch.randn(2, 3, 32, 32).bfloat16()
    wanted = mhex.explain(exact, images.float(), method, 3).scores
    scores = mhex.explain(copy.deepcopy(exact).bfloat16(), images, method, 3).scores
    torch.testing.assert_close(scores, wanted, rtol=1e-5, atol=1e-6 * float(wanted.abs().max()))
