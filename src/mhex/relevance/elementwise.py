"""Rules of activations and norms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mhex.capture.hooks import on_gradient
from mhex.capture.operations import OUT_OF_PLACE
from mhex.relevance.affine import norm_settings
from mhex.relevance.flow import Flow, Operation, Rule

_RELU = (F.relu, torch.relu, Tensor.relu)
# Slopes at 0, where value / input is not defined.
_AT_ZERO: dict[Operation, float] = {
    **dict.fromkeys((*_RELU, F.relu6), 0.0),
    **dict.fromkeys((F.gelu, F.silu, F.hardswish), 0.5),
    F.mish: 0.6,
    **dict.fromkeys((F.tanh, torch.tanh, Tensor.tanh, F.elu, F.hardtanh, F.leaky_relu), 1.0),
}


def passed(flow: Flow, operation: Operation, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Relevance flow: what arrives from above is handed down unchanged."""
    return flow.node(lambda: operation(x, *args, **kwargs), lambda carried, _: [carried], x)


def cut(flow: Flow, operation: Operation, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """The value is taken for a constant: attention probabilities, a gate or the scale of a norm that is written out."""
    with torch.no_grad():
        return operation(x, *args, **kwargs)


def ratio_of_activation(flow: Flow, operation: Operation, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Gradient flow: the slope is replaced by value / input, so that relevance passes unchanged."""
    if operation in _RELU:
        return operation(x, *args, **kwargs)
    at_zero = _AT_ZERO.get(operation, 0.5)  # modules that write their GELU out are not in the table

    def back(carried: Tensor, y: Tensor) -> list[Tensor]:
        return [(y / x).nan_to_num_(at_zero).mul_(carried)]  # 0 / 0 at 0

    return flow.node(lambda: operation(x, *args, **kwargs), back, x)


def guided(flow: Flow, operation: Operation, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Guided backpropagation: negative gradients stop at a ReLU."""
    if OUT_OF_PLACE.get(operation, operation) not in _RELU:
        before = x.grad_fn
        bent = operation(x, *args, **kwargs)
        owner = getattr(operation, "__self__", None)  # of a GELU that is written out
        flow.doubt(type(owner) if isinstance(owner, nn.Module) else operation, bent, before)
        return bent
    flow.met.add("relu")
    y: Tensor = operation(x, *args, **kwargs)
    through = y
    if y is x and y._is_view() and y._base is not None:  # who reads the base later goes past the view
        through = y._base
        if through.numel() != y.numel():
            flow.unknown[f"{getattr(operation, '__name__', operation)} into a part of a tensor"] += 1
    if through.requires_grad:  # not where the model takes no gradient
        on_gradient(through, lambda carried: carried.clamp_min(0))
    return y


@dataclass
class LayerNorm:
    """A call of a layer norm: the arguments as torch names them, and the inverse standard deviations of `input`."""

    input: Tensor
    normalized_shape: Any
    weight: Tensor | None = None
    bias: Tensor | None = None
    eps: float = 1e-5
    cudnn_enable: bool = True

    def compute(self) -> Tensor:
        """The value of the call."""
        shape = list(self.normalized_shape)
        y, _, self.rstd = torch.native_layer_norm(self.input, shape, self.weight, self.bias, self.eps)
        return y

    @cached_property
    def rstd_of_sizes(self) -> Tensor:
        """The inverse standard deviations of `|input|`."""
        sizes = self.input.detach().abs()
        return torch.native_layer_norm(sizes, list(self.normalized_shape), None, None, self.eps)[2].to(sizes.dtype)


def layer_norm_rule(back: Callable[[Flow, LayerNorm, Tensor, Tensor], Tensor]) -> Rule:
    """Rule of `"layer_norm"` that hands `back(flow, call, carried, y)` to its input."""

    def rule(flow: Flow, operation: Operation, *args: Any, **kwargs: Any) -> Tensor:
        call = LayerNorm(*args, **kwargs)
        return flow.node(call.compute, lambda carried, y: [back(flow, call, carried, y)], call.input)

    return rule


@layer_norm_rule
def frozen_layer_norm(flow: Flow, call: LayerNorm, carried: Tensor, y: Tensor) -> Tensor:
    """Gradient flow: `(x - mean) / sigma` with sigma a constant; centring is kept, as the linear map that it is."""
    if call.bias is not None:
        flow.lose(carried * call.bias)
    scaled = carried if call.weight is None else carried * call.weight
    axes = tuple(range(-len(call.normalized_shape), 0))
    return (scaled - scaled.mean(axes, keepdim=True)) * call.rstd.to(scaled.dtype)


def frozen_rms_norm(
    flow: Flow, operation: Operation, x: Tensor, normalized_shape: Any, weight: Tensor | None = None, eps: Any = None
) -> Tensor:
    """Gradient flow: `x / rms` with the length a constant."""
    axes = tuple(range(-len(normalized_shape), 0))
    least = torch.finfo(x.dtype).eps if eps is None else eps

    def back(carried: Tensor, _: Tensor) -> list[Tensor]:
        scaled = carried if weight is None else carried * weight
        return [scaled * (x.square().mean(axes, keepdim=True) + least).rsqrt()]

    return flow.node(lambda: operation(x, normalized_shape, weight, eps), back, x)


def frozen_group_norm(
    flow: Flow,
    operation: Operation,
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> Tensor:
    """Gradient flow: as a layer norm, over the channels of each group and all places."""
    shape = (input.shape[0], num_groups, -1)
    channels = (1, -1, *[1] * (input.dim() - 2))

    def back(carried: Tensor, _: Tensor) -> list[Tensor]:
        if bias is not None:
            flow.lose(carried * bias.view(channels))
        scaled = (carried if weight is None else carried * weight.view(channels)).reshape(shape)
        spread = input.detach().reshape(shape).var(-1, correction=0, keepdim=True).add(eps).rsqrt()
        return [((scaled - scaled.mean(-1, keepdim=True)) * spread).view_as(input)]

    return flow.node(lambda: operation(input, num_groups, weight, bias, eps), back, input)


def affine_norm(flow: Flow, operation: Operation, x: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Gradient flow: a batch norm that follows no layer is linear; its offset absorbs its share."""
    settings = norm_settings(x, *args, **kwargs)
    if settings is None:
        return NotImplemented
    scale, shift = (setting.reshape(-1, *[1] * (x.dim() - 2)) for setting in settings)

    def back(carried: Tensor, _: Tensor) -> list[Tensor]:
        flow.lose(carried * shift)
        return [carried * scale]

    return flow.node(lambda: operation(x, *args, **kwargs), back, x)
