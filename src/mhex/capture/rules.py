"""The seam for relevance rules: an operation is swapped for one with the same value and another backward.

A *rule* is called in place of the operation it stands for, as `rule(operation, *args, **kwargs)`, and returns what
the operation returns. A *composite* is a mapping from an operation's name to its rule, so a variant of layer-wise
relevance propagation is a small table. Composites are given to `observe(..., rules=composite)`; they act only on
the forward pass made there, on this thread, and the backward pass of its graph. Nothing is patched.

`OPERATIONS` says which torch functions carry which name; `"attention"` is scaled-dot-product attention.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Rule = Callable[..., Any]
Composite = Mapping[str, Rule]

OPERATIONS: dict[Callable[..., Any], str] = {
    F.scaled_dot_product_attention: "attention",
    F.linear: "linear",
    F.conv2d: "convolution",
    F.layer_norm: "layer_norm",
    F.batch_norm: "batch_norm",
    F.softmax: "softmax",
    torch.softmax: "softmax",
    Tensor.softmax: "softmax",
    F.gelu: "activation",
    F.silu: "activation",
    F.relu: "activation",
    torch.relu: "activation",
    torch.relu_: "activation",
    Tensor.relu: "activation",
    Tensor.relu_: "activation",
    torch.tanh: "activation",
    Tensor.tanh: "activation",
    F.tanh: "activation",
    torch.add: "add",
    Tensor.add: "add",
    Tensor.add_: "add",
    Tensor.__add__: "add",
    Tensor.__radd__: "add",
    Tensor.__iadd__: "add",
    torch.matmul: "matmul",
    Tensor.matmul: "matmul",
    Tensor.__matmul__: "matmul",
}


class _PassGradient(torch.autograd.Function):
    """The value of an element-wise function, with the gradient of the identity."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


def pass_through(operation: Callable[..., Tensor], x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Rule for element-wise operations: whatever arrives from above is handed down unchanged."""
    with torch.no_grad():
        value = operation(x.clone(), *args, **kwargs)
    result: Tensor = _PassGradient.apply(x, value)
    return result
