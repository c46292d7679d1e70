"""Tensors with a backward of their own, and small helpers of the rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from mhex.relevance.flow import Flow

_USES = "_mhex_uses"  # on tensors of the pass alone
Back = Callable[[Tensor, Tensor], Sequence[Tensor | None]]


class _Node(torch.autograd.Function):
    """A value with a backward of its own."""

    @staticmethod
    def forward(ctx: Any, flow: Flow, compute: Callable[[], Tensor], back: Back, *_: Tensor) -> Tensor:
        value = compute()
        ctx.flow, ctx.back = flow, back
        ctx.layout = flow.turned, flow.straightened
        ctx.value = value.detach()  # a second tensor, so that the node does not hold itself
        return value

    @staticmethod
    def backward(ctx: Any, *carried: Tensor) -> tuple[Tensor | None, ...]:
        ctx.flow.turned, ctx.flow.straightened = ctx.layout
        return (None, None, None, *ctx.back(carried[0], ctx.value))


def node(flow: Flow, compute: Callable[[], Tensor], back: Back, *inputs: Tensor) -> Tensor:
    """The value of `compute()`, with `back` in place of its gradient.

    Args:
        flow: The pass.
        compute: Makes the value, without a graph.
        back: From what the backward pass carries, and the value, to what it hands to each input.
        inputs: Tensors of the graph that the value depends on.
    """
    note_uses(inputs)
    result: Tensor = _Node.apply(flow, compute, back, *inputs)
    setattr(result, _USES, 0)
    return result


def note_uses(inputs: Sequence[Any]) -> None:
    """Count how often results of rules are used."""
    for x in inputs:
        if isinstance(x, (list, tuple)):
            note_uses(x)
        elif (uses := getattr(x, _USES, None)) is not None:
            setattr(x, _USES, uses + 1)


def unmarked(x: Tensor) -> Tensor:
    """The same, not counted, because it only moves numbers: what arrives at it may meet others further on."""
    delattr(x, _USES)
    return x


def used_once(x: Tensor) -> bool:
    """True for the result of a rule that only one operation reads; known after the forward pass."""
    return getattr(x, _USES, None) == 1


def any_in_graph(values: Sequence[Any]) -> bool:
    return any(
        value.requires_grad
        if isinstance(value, Tensor)
        else isinstance(value, (list, tuple)) and any(isinstance(one, Tensor) and one.requires_grad for one in value)
        for value in values
    )


def places_below(outputs: Sequence[Tensor]) -> set[Any]:
    """All places of the graph that a backward pass from these tensors goes through."""
    reached: set[Any] = set()
    waiting = [output.grad_fn for output in outputs]
    while waiting:
        place = waiting.pop()
        if place is not None and place not in reached:
            reached.add(place)
            waiting.extend(below for below, _ in place.next_functions)
    return reached


def overlap(one: Tensor, other: Tensor) -> bool:
    """Whether two views of one tensor have elements in common."""
    places = torch.zeros(one.untyped_storage().nbytes() // one.element_size(), dtype=torch.bool)
    places.as_strided(one.shape, one.stride(), one.storage_offset()).fill_(True)
    return bool(places.as_strided(other.shape, other.stride(), other.storage_offset()).any())


def graph_operands(*values: Any) -> list[int]:
    """Places of the operands that are in the graph."""
    return [place for place, value in enumerate(values) if isinstance(value, Tensor) and value.requires_grad]


def at_least(by: Tensor, size: Tensor, floor: float) -> Tensor:
    """Divisors with absolute values of `floor * size` at least; their signs stay."""
    return torch.copysign(torch.maximum(by.abs(), size * floor), by)


def divide(number: Tensor, by: Tensor, epsilon: float) -> Tensor:
    """`number / (by + epsilon sgn(by))` with `sgn(0) = 1`; without epsilon, 0 where the divisor is 0."""
    if epsilon == 0:
        return (number / by).masked_fill_(by == 0, 0.0)
    stable = torch.copysign(by.new_tensor(epsilon), by).add_(by)
    return torch.div(number, stable, out=stable)
