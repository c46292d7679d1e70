"""Arithmetic that rules share: operands in the graph, gradients of single operations, divisions that stay finite."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mhex.capture.operations import tensors_in

Operation = Callable[..., Tensor]


def graph_operands(*values: Any) -> list[int]:
    """Positions of the operands that are in the graph."""
    return [place for place, value in enumerate(values) if isinstance(value, Tensor) and value.requires_grad]


def in_graph(*values: Any) -> list[Tensor]:
    """The tensors among values, and in lists among them, that are in the graph."""
    return [tensor for tensor in tensors_in(values) if tensor.requires_grad]


def slopes(
    operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any], places: Sequence[int], s: Tensor
) -> tuple[Tensor, ...]:
    """Gradients of an operation with respect to the operands at some places, from that of its value."""
    with torch.enable_grad():
        points = {place: args[place].detach().requires_grad_() for place in places}
        value = operation(*(points.get(place, operand) for place, operand in enumerate(args)), **kwargs)
        return torch.autograd.grad(value, list(points.values()), s)


def at_least(by: Tensor, size: Tensor, floor: float) -> Tensor:
    """Divisors with absolute values of `floor * size` at least; their signs stay."""
    return torch.copysign(torch.maximum(by.abs(), size * floor), by)


def divide(number: Tensor, by: Tensor, epsilon: float) -> Tensor:
    """`number / (by + epsilon sgn(by))` with `sgn(0) = 1`; without epsilon, 0 where the divisor is 0."""
    if epsilon == 0:
        return (number / by).masked_fill_(by == 0, 0.0)
    stable = torch.copysign(torch.full((), epsilon, dtype=by.dtype, device=by.device), by).add_(by)
    return torch.div(number, stable, out=stable)
