"""Rules of additions, averages and joined tensors: whatever is linear and has no weight."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from mhex.relevance.flow import Flow
from mhex.relevance.node import at_least, divide, graph_operands, node, unmarked

Operation = Callable[..., Tensor]
_MASKED = -100.0  # of masks of attention: some are minus infinity, some large negative numbers


def terms_of(operation: Operation, a: Any, b: Any, alpha: float = 1) -> tuple[tuple[Any, Any], tuple[float, float]]:
    """Both operands of an addition or a subtraction, and the factors that they are added with."""
    name = operation.__name__
    if "rsub" in name:
        return (a, b), (-alpha, 1)
    return (a, b), (1, -alpha if "sub" in name else alpha)


def is_mask(value: Any) -> bool:
    """True of a tensor that, added to others, leaves numbers as they are or hides them."""
    return isinstance(value, Tensor) and bool(((value == 0) | (value <= _MASKED)).all())


def plain_sum(flow: Flow, operation: Operation, *args: Any, **kwargs: Any) -> Any:
    """Gradient flow: the gradient is right; a constant term absorbs its share."""
    terms, factors = terms_of(operation, *args, **kwargs)
    places = graph_operands(*terms)
    if len(places) == 2:
        return operation(*args, **kwargs)
    (place,) = places
    other = 1 - place

    def back(carried: Tensor, y: Tensor) -> list[Tensor]:
        flow.lose((carried * (terms[other] * factors[other])).masked_fill(carried == 0, 0.0))  # masks are infinite
        return [(carried * factors[place]).sum_to_size(terms[place].shape)]

    return node(flow, lambda: operation(*args, **kwargs), back, terms[place])


def summed(split: Callable[[Flow, Sequence[Tensor], Tensor, Tensor], list[Tensor]]) -> Callable[..., Any]:
    """Rule of `"add"` and `"subtract"` in the relevance flow; a mask of attention is no term.

    Args:
        split: From the terms, the relevance of their sum and the sum to the relevance of each term, all of the shape
            of the sum.
    """

    def rule(flow: Flow, operation: Operation, *args: Any, **kwargs: Any) -> Any:
        terms, factors = terms_of(operation, *args, **kwargs)
        places = graph_operands(*terms)

        def back(carried: Tensor, y: Tensor) -> list[Tensor]:
            if len(places) == 1 and is_mask(terms[1 - places[0]]):
                return [carried.sum_to_size(terms[places[0]].shape)]
            pairs = zip(terms, factors, strict=True)
            values = [torch.as_tensor(term, dtype=y.dtype, device=y.device).detach() * factor for term, factor in pairs]
            parts = split(flow, [value.expand_as(y) for value in values], carried, y)
            for place, part in enumerate(parts):
                if place not in places:
                    flow.lose(part)
            return [parts[place].sum_to_size(terms[place].shape) for place in places]

        return node(flow, lambda: operation(*args, **kwargs), back, *(terms[place] for place in places))

    return rule


def by_ratio(epsilon: float, floor: float = 0.0) -> Callable[..., list[Tensor]]:
    """Each term has its share in the sum, place by place.

    Args:
        epsilon: Stabiliser.
        floor: What is divided by has this share of the terms' sizes at least; see `Flow.floor`.
    """

    def split(flow: Flow, terms: Sequence[Tensor], relevance: Tensor, y: Tensor) -> list[Tensor]:
        below = flow.floor(floor)
        by = at_least(y, torch.stack([term.abs() for term in terms]).sum(0), below) if below else y
        s = divide(relevance, by, epsilon)
        if bool(y.isfinite().all()):
            return [term * s for term in terms]
        return [(term * s).masked_fill_(relevance == 0, 0.0) for term in terms]  # a mask with a bias in it

    return split


def renormalised(epsilon: float, floor: float = 0.0) -> Callable[..., list[Tensor]]:
    """The shares place by place, then scaled so that terms get what is theirs of the sample's relevance.

    With `p_a = a R / (a + b)` and sums over the sample, `R_a = p_a / sum p_a * |sum p_a| / (|sum p_a| + |sum p_b|) *
    sum R`: a term whose shares sum below 0 changes its sign. The sums run over each sample alone.
    """

    def split(flow: Flow, terms: Sequence[Tensor], relevance: Tensor, y: Tensor) -> list[Tensor]:
        parts = by_ratio(epsilon, floor)(flow, terms, relevance, y)
        sums = [flow.total(part) for part in parts]
        whole = torch.stack(sums).abs().sum(0)
        scale = divide(flow.total(relevance), whole, 0.0)
        return [
            part.mul_(flow.spread(torch.where(total < 0, -scale, scale), part))
            for part, total in zip(parts, sums, strict=True)
        ]

    return split


def by_share(epsilon: float, floor: float = 0.0) -> Callable[..., Any]:
    """Rule of averages and the like in the relevance flow: each input has its share in the output.

    Args:
        epsilon: Stabiliser.
        floor: As of sums.
    """

    def rule(flow: Flow, operation: Operation, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(x, Tensor):
            return NotImplemented

        def back(carried: Tensor, y: Tensor) -> list[Tensor]:
            below = flow.floor(floor)
            by = at_least(y, operation(x.detach().abs(), *args, **kwargs), below) if below else y
            with torch.enable_grad():
                point = x.detach().requires_grad_()
                (slope,) = torch.autograd.grad(operation(point, *args, **kwargs), point, divide(carried, by, epsilon))
            return [x * slope]

        return node(flow, lambda: operation(x, *args, **kwargs), back, x)

    return rule


def joined(flow: Flow, operation: Operation, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Rule of `"concatenate"`: the usual way back, and what constants such as class tokens are given is noted."""
    tensors = [one for one in tensors if one.dim() != 1 or len(one)]  # an empty cache of keys is passed over
    places = graph_operands(*tensors)

    def back(carried: Tensor, y: Tensor) -> list[Tensor]:
        parts = torch.split(carried, [tensor.shape[dim] for tensor in tensors], dim)
        for place, part in enumerate(parts):
            if place not in places:
                flow.lose(part if flow.relevance else part * tensors[place])
        return [parts[place] for place in places]

    return unmarked(node(flow, lambda: operation(tensors, dim), back, *(tensors[place] for place in places)))
