"""Values with a backward of their own, and small helpers of the rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

USES = "_mhex_uses"  # an attribute of the tensors of a pass
Back = Callable[[Tensor, Tensor], Sequence[Tensor | None]]
Operation = Callable[..., Tensor]


class Node(torch.autograd.Function):
    """A value with another backward. Its first argument is the `Flow` of the pass."""

    @staticmethod
    def forward(ctx: Any, flow: Any, compute: Callable[[], Tensor], back: Back, *inputs: Tensor) -> Tensor:
        value = compute()
        ctx.flow, ctx.back = flow, back
        ctx.layout = flow.turned, flow.straightened
        ctx.value = value.detach()  # a second tensor, so that the node does not hold itself
        return value

    @staticmethod
    def backward(ctx: Any, *carried: Tensor) -> tuple[Tensor | None, ...]:
        ctx.flow.turned, ctx.flow.straightened = ctx.layout
        return (None, None, None, *ctx.back(carried[0], ctx.value))


def note_uses(inputs: Sequence[Any]) -> None:
    """Count one more use of every result of a rule among the inputs of an operation."""
    for x in inputs:
        if isinstance(x, (list, tuple)):
            note_uses(x)
        elif (uses := getattr(x, USES, None)) is not None:
            setattr(x, USES, uses + 1)


def used_once(x: Tensor) -> bool:
    """True for the result of a rule that only one operation reads; this is known after the forward pass."""
    return getattr(x, USES, None) == 1


def any_in_graph(values: Sequence[Any]) -> bool:
    """True if one of the values, or an item of a list among them, is a tensor of the graph."""
    return any(
        value.requires_grad
        if isinstance(value, Tensor)
        else isinstance(value, (list, tuple)) and any(isinstance(item, Tensor) and item.requires_grad for item in value)
        for value in values
    )


def nodes_below(outputs: Sequence[Tensor]) -> set[Any]:
    """All nodes of the graph that a backward pass from these tensors goes through."""
    reached: set[Any] = set()
    waiting = [output.grad_fn for output in outputs]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in reached:
            reached.add(node)
            waiting.extend(below for below, _ in node.next_functions)
    return reached


def overlap(a: Tensor, b: Tensor) -> bool:
    """Whether two views of one tensor have elements in common."""
    places = torch.zeros(a.untyped_storage().nbytes() // a.element_size(), dtype=torch.bool)
    places.as_strided(a.shape, a.stride(), a.storage_offset()).fill_(True)
    return bool(places.as_strided(b.shape, b.stride(), b.storage_offset()).any())


def graph_operands(*values: Any) -> list[int]:
    """Positions of the operands that are in the graph."""
    return [place for place, value in enumerate(values) if isinstance(value, Tensor) and value.requires_grad]


def in_graph(*tensors: Tensor) -> list[Tensor]:
    """The tensors that are in the graph."""
    return [tensor for tensor in tensors if tensor.requires_grad]


def at_least(by: Tensor, size: Tensor, floor: float) -> Tensor:
    """Divisors with absolute values of `floor * size` at least; their signs stay."""
    return torch.copysign(torch.maximum(by.abs(), size * floor), by)


def divide(number: Tensor, by: Tensor, epsilon: float) -> Tensor:
    """`number / (by + epsilon sgn(by))` with `sgn(0) = 1`; without epsilon, 0 where the divisor is 0."""
    if epsilon == 0:
        return (number / by).masked_fill_(by == 0, 0.0)
    stable = torch.copysign(by.new_tensor(epsilon), by).add_(by)
    return torch.div(number, stable, out=stable)
