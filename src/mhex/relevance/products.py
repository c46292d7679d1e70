"""Rules of products: scaling by constants, products of activations, matrix products and attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from mhex.capture.attention import AttentionRecord
from mhex.capture.operations import is_from
from mhex.relevance.flow import Flow
from mhex.relevance.node import at_least, divide, graph_operands, node

Operation = Callable[..., Tensor]


def divides(operation: Operation) -> bool:
    """Whether the second operand is divided by."""
    return "div" in operation.__name__


def scaled(flow: Flow, operation: Operation, a: Any, b: Any = -1.0, **kwargs: Any) -> Any:
    """Rule of products and quotients, element by element: two activations share alike, a constant gets nothing."""
    if kwargs or (divides(operation) and isinstance(b, Tensor) and b.requires_grad):
        return NotImplemented
    places = graph_operands(a, b)
    share = 1 / len(places)
    if not flow.relevance:
        if len(places) == 1:
            return operation(a) if "neg" in operation.__name__ else operation(a, b)
        return node(
            flow,
            lambda: operation(a, b),
            lambda carried, _: [(carried * b * share).sum_to_size(a.shape), (carried * a * share).sum_to_size(b.shape)],
            a,
            b,
        )
    inputs = [(a, b)[place] for place in places]
    call = (lambda: operation(a)) if "neg" in operation.__name__ else (lambda: operation(a, b))
    return node(flow, call, lambda carried, _: [(carried * share).sum_to_size(one.shape) for one in inputs], *inputs)


def halved(epsilon: float, floor: float = 0.0) -> Callable[..., Any]:
    """Rule of `"matmul"`: of two activations, each is given half; of one and a constant, it is given all.

    Args:
        epsilon: Stabiliser.
        floor: As of sums; the terms are those that the product adds up. None for attention times values.
    """

    def rule(flow: Flow, operation: Operation, *args: Any, **kwargs: Any) -> Any:
        places = graph_operands(*args)
        if not places:  # einsum takes its operands as a list too
            return NotImplemented
        share = 1 / len(places)
        # What a layer hands down to the output of attention is in proportion to it.
        weighs_values = any(is_from(operand, "weights") for operand in args)

        def back(carried: Tensor, y: Tensor) -> list[Tensor]:
            s = carried
            if flow.relevance:
                below = 0.0 if weighs_values else flow.floor(floor)
                sizes = (x.detach().abs() if isinstance(x, Tensor) else x for x in args)
                s = divide(carried, at_least(y, operation(*sizes, **kwargs), below) if below else y, epsilon)
            with torch.enable_grad():
                points = [args[place].detach().requires_grad_() for place in places]
                given = [points[places.index(k)] if k in places else one for k, one in enumerate(args)]
                found = torch.autograd.grad(operation(*given, **kwargs), points, s * share)
            return [p.detach() * g for p, g in zip(points, found, strict=True)] if flow.relevance else list(found)

        return node(flow, lambda: operation(*args, **kwargs), back, *(args[place] for place in places))

    return rule


def constant_attention(flow: Flow, operation: Operation, q: Tensor, k: Tensor, v: Tensor, **kwargs: Any) -> Tensor:
    """Gradient flow: attention probabilities are constants, and relevance flows to the values alone."""
    if not v.requires_grad:
        return operation(q.detach(), k.detach(), v, **kwargs)
    record = as_record(q, k, v, **kwargs)

    def back(carried: Tensor, z: Tensor) -> list[Tensor]:
        return [grouped(record.probabilities().to(z.dtype).mT @ carried, v)]

    return node(flow, lambda: operation(q, k, v, **kwargs), back, v)


def shared_attention(flow: Flow, operation: Operation, q: Tensor, k: Tensor, v: Tensor, **kwargs: Any) -> Tensor:
    """Gradient flow: both factors of both products share alike, which is 1/4, 1/4 and 1/2 of the gradients."""
    parts = [_weighed(flow, one, share) for one, share in ((q, 0.25), (k, 0.25), (v, 0.5))]
    return operation(*parts, **kwargs)


def _weighed(flow: Flow, x: Tensor, share: float) -> Tensor:
    return node(flow, lambda: x.clone(), lambda carried, _: [carried * share], x) if x.requires_grad else x


def halved_attention(epsilon: float, floor: float = 0.0) -> Callable[..., Any]:
    """Rule of `"attention"` in the relevance flow: the matrix products share alike, softmax passes relevance on.

    Args:
        epsilon: Stabiliser.
        floor: As of sums, for the logits; the terms are those that the product of queries and keys adds up.
    """

    def rule(flow: Flow, operation: Operation, q: Tensor, k: Tensor, v: Tensor, **kwargs: Any) -> Tensor:
        record = as_record(q, k, v, **kwargs)

        def back(carried: Tensor, z: Tensor) -> list[Tensor]:
            query, keys, values = q.detach(), record.keys(), record.values()
            logits = record.logits(masked=False).to(z.dtype)
            free = record.mask is None and not record.causal
            probabilities = logits.softmax(-1) if free else record.probabilities().to(z.dtype)
            if below := flow.floor(floor):
                logits = at_least(logits, query.abs() @ keys.abs().mT * record.scale, below)
            s = divide(carried, z, epsilon).mul_(0.5)
            to_values = (probabilities.mT @ s).mul_(values)
            to_logits = (s @ values.mT).mul_(probabilities)
            shares = divide(to_logits, logits, epsilon).mul_(record.scale / 2)
            to_query, to_keys = (shares @ keys).mul_(query), (shares.mT @ query).mul_(keys)
            return handed(flow, (to_query, grouped(to_keys, k), grouped(to_values, v)), (q, k, v))

        return node(flow, lambda: operation(q, k, v, **kwargs), back, *in_graph(q, k, v))

    return rule


def as_record(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> AttentionRecord:
    """What a call of scaled-dot-product attention computes."""
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    return AttentionRecord(q.detach(), k.detach(), v.detach(), attn_mask, factor, is_causal, None)


def in_graph(*tensors: Tensor) -> list[Tensor]:
    """Those of the graph."""
    return [tensor for tensor in tensors if tensor.requires_grad]


def handed(flow: Flow, relevances: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    """What is handed to the inputs of the graph; what others (a learned query) would be given is noted as lost."""
    for relevance, x in zip(relevances, inputs, strict=True):
        if not x.requires_grad:
            flow.lose(relevance)
    return [relevance for relevance, x in zip(relevances, inputs, strict=True) if x.requires_grad]


def grouped(per_head: Tensor, like: Tensor) -> Tensor:
    """Sum over the query heads that share keys or values."""
    if per_head.shape[1] == like.shape[1]:
        return per_head
    batch, _, tokens, width = per_head.shape
    return per_head.reshape(batch, like.shape[1], -1, tokens, width).sum(2)
