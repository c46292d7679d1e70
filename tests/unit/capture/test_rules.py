"""The seam for relevance rules: every operation reaches its rule, in whatever form the model writes it."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mhex.capture.rules import pass_through
from mhex.capture.tap import FunctionTap

X = torch.randn(2, 3, 8, 8)
FORMS = {
    "linear": [lambda: nn.Linear(8, 4)(X), lambda: F.linear(X, torch.randn(4, 8))],
    "convolution": [lambda: nn.Conv2d(3, 4, 3)(X), lambda: F.conv2d(X, torch.randn(4, 3, 3, 3))],
    "layer_norm": [lambda: nn.LayerNorm(8)(X), lambda: F.layer_norm(X, (8,))],
    "batch_norm": [lambda: nn.BatchNorm2d(3).eval()(X)],
    "softmax": [lambda: X.softmax(-1), lambda: torch.softmax(X, -1), lambda: nn.Softmax(-1)(X)],
    "activation": [
        lambda: nn.GELU()(X),
        lambda: nn.SiLU()(X),
        lambda: nn.ReLU(inplace=True)(X.clone()),
        lambda: X.relu(),
        lambda: torch.tanh(X),
        lambda: nn.Tanh()(X),
    ],
    "add": [
        lambda: X + X,
        lambda: torch.add(X, X),
        lambda: X.add(X),
        lambda: X.clone().add_(X),
        lambda: X.clone().__iadd__(X),
        lambda: 1 + X,
    ],
    "matmul": [lambda: X @ X, lambda: torch.matmul(X, X), lambda: X.matmul(X)],
    "attention": [lambda: F.scaled_dot_product_attention(X, X, X)],
}


@pytest.mark.parametrize(
    ("name", "form"),
    [pytest.param(name, i, id=f"{name}-{i}") for name, forms in FORMS.items() for i in range(len(forms))],
)
def test_every_form_of_an_operation_reaches_its_rule(name, form):
    seen = []

    def rule(operation, *args, **kwargs):
        seen.append(operation)
        return operation(*args, **kwargs)

    with FunctionTap(lambda attend, *args, **kwargs: attend(*args, **kwargs), {name: rule}):
        FORMS[name][form]()
    assert len(seen) == 1


def test_projections_inside_multi_head_attention_reach_their_rule():
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    seen = []

    def rule(operation, *args, **kwargs):
        seen.append(args[0].shape)
        return operation(*args, **kwargs)

    x = torch.randn(2, 5, 8)
    with FunctionTap(lambda attend, *args, **kwargs: attend(*args, **kwargs), {"linear": rule}):
        attention(x, x, x, need_weights=False)
    assert len(seen) == 2, "the packed projection of q, k and v, and the output projection"


def test_pass_through_keeps_the_value_and_hands_down_the_gradient():
    x = torch.randn(4, dtype=torch.float64, requires_grad=True)
    with FunctionTap(lambda *args: None, {"activation": pass_through}):
        y = F.gelu(x)
    assert y.equal(F.gelu(x))
    assert torch.autograd.grad(y.sum(), x)[0].equal(torch.ones(4, dtype=torch.float64))
    assert not torch.autograd.grad(F.gelu(x).sum(), x)[0].equal(torch.ones(4, dtype=torch.float64))
