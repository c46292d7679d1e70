"""The rules of absLRP: positive contributions over the absolute output, and mass 1 after every operation.

For an operation `f` and the same with absolute constants `f'`: `s = R / (|f(x)| + 1e-9)`, `R_in = x * (J_f(x)^T s +
sgn(x) J_f'(|x|)^T s)`, divided by its sum of absolute values over the sample. Every operand is scaled by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mhex.capture.rules.affine import Shares, affine, folded_norm
from mhex.capture.rules.composite import Composite
from mhex.capture.rules.elementwise import cut
from mhex.capture.rules.flow import Flow, divide, graph_operands, node
from mhex.capture.rules.layer import Affine
from mhex.capture.rules.products import as_record, divides, grouped, handed, in_graph
from mhex.capture.rules.sums import joined, terms_of

Operation = Callable[..., Tensor]
_LEAST = 1e-9


def mass_one(flow: Flow, relevance: Tensor) -> Tensor:
    """Relevance whose absolute values sum to 1 in every sample; zeros stay zeros."""
    mass = flow.total(relevance.abs())
    return relevance * flow.spread(divide(torch.ones_like(mass), mass, 0.0), relevance)


def fixed(value: Any) -> Any:
    """Tensors without their graph."""
    return value.detach() if isinstance(value, Tensor) else value


def _absolute(value: Any) -> Any:
    return value.abs() if isinstance(value, Tensor) and value.is_floating_point() else value


def _weights(relevance: Tensor, y: Tensor) -> Tensor:
    return relevance / (y.abs() + _LEAST)


@dataclass(frozen=True)
class Absolute(Shares):
    """Affine layers: `R_i = 2 sum_j z_ij^+ R_j / |y_j|`, scaled to mass 1."""

    def shares(self, flow: Flow, layer: Affine, carried: Tensor, y: Tensor) -> tuple[Tensor, Tensor | None]:
        s = _weights(carried, y)
        return s, s

    def hand_down(self, flow: Flow, layer: Affine, carried: Tensor, y: Tensor) -> Tensor:
        return mass_one(flow, super().hand_down(flow, layer, carried, y))


def operation_rule(flow: Flow, operation: Operation, *args: Any, **kwargs: Any) -> Any:
    """Any differentiable operation on tensors: products, averages, activations."""
    places = graph_operands(*args)
    if not places:
        return NotImplemented

    def slopes(s: Tensor, absolute: bool) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            values, named = map(fixed, args), {name: fixed(one) for name, one in kwargs.items()}
            given = [_absolute(one) for one in values] if absolute else list(values)
            named = {name: _absolute(one) for name, one in named.items()} if absolute else named
            points = [given[place].requires_grad_() for place in places]
            return torch.autograd.grad(operation(*given, **named), points, s)

    def back(carried: Tensor, y: Tensor) -> list[Tensor]:
        s = _weights(carried, y)
        pairs = zip(places, slopes(s, False), slopes(s, True), strict=True)
        return [
            mass_one(flow, args[place].detach() * one + args[place].detach().abs() * other)
            for place, one, other in pairs
        ]

    return node(flow, lambda: operation(*args, **kwargs), back, *(args[place] for place in places))


def scale_rule(flow: Flow, operation: Operation, *args: Any, **kwargs: Any) -> Any:
    """Scaling by a constant: only positive outputs have relevance. Products of activations are as any operation."""
    places = graph_operands(*args)
    if kwargs or (1 in places and divides(operation)):
        return NotImplemented
    if len(places) == 2:
        return operation_rule(flow, operation, *args)
    x = args[places[0]]
    return node(
        flow,
        lambda: operation(*args),
        lambda carried, y: [mass_one(flow, (2 * y.clamp_min(0) * _weights(carried, y)).sum_to_size(x.shape))],
        x,
    )


def sum_rule(flow: Flow, operation: Operation, *args: Any, **kwargs: Any) -> Tensor:
    """Both terms of a sum are scaled by themselves, so the larger one gets no more than the other."""
    terms, factors = terms_of(operation, *args, **kwargs)
    places = graph_operands(*terms)

    def back(carried: Tensor, y: Tensor) -> list[Tensor]:
        s = _weights(carried, y)
        shares = [2 * (terms[place].detach() * factors[place]).clamp_min(0) * s for place in places]
        return [
            mass_one(flow, share.sum_to_size(terms[place].shape)) for share, place in zip(shares, places, strict=True)
        ]

    return node(flow, lambda: operation(*args, **kwargs), back, *(terms[place] for place in places))


def layer_norm_rule(
    flow: Flow,
    operation: Operation,
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> Tensor:
    """Mean and variance are constants, those of `|x|` for the absolute operation."""
    axes = tuple(range(-len(normalized_shape), 0))

    def scale(x: Tensor) -> Tensor:
        return (x.var(axes, keepdim=True, unbiased=False) + eps).rsqrt()

    def back(carried: Tensor, y: Tensor) -> list[Tensor]:
        s, x = _weights(carried, y), input.detach()
        signed, sized = (1.0, 1.0) if weight is None else (weight, weight.abs())
        return [mass_one(flow, s * (x * signed * scale(x) + x.abs() * sized * scale(x.abs())))]

    return node(flow, lambda: operation(input, normalized_shape, weight, bias, eps), back, input)


def rms_norm_rule(
    flow: Flow,
    operation: Operation,
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """The length is a constant, and the same for `|x|`: positive outputs have relevance, as after a scaling."""

    def back(carried: Tensor, y: Tensor) -> list[Tensor]:
        return [mass_one(flow, 2 * y.clamp_min(0) * _weights(carried, y))]

    return node(flow, lambda: operation(input, normalized_shape, weight, eps), back, input)


def softmax_rule(flow: Flow, operation: Operation, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """The denominator is a constant, that of `|x|` for the absolute operation."""

    def back(carried: Tensor, y: Tensor) -> list[Tensor]:
        finite = x.detach().masked_fill(x.isneginf(), 0.0)
        sized = operation(x.detach().abs().masked_fill(x.isneginf(), -torch.inf), *args, **kwargs)
        return [mass_one(flow, _weights(carried, y) * (finite * y + finite.abs() * sized))]

    return node(flow, lambda: operation(x, *args, **kwargs), back, x)


def attention_rule(flow: Flow, operation: Operation, q: Tensor, k: Tensor, v: Tensor, **kwargs: Any) -> Tensor:
    """The matrix products and the softmax of attention by the rules above."""
    record = as_record(q, k, v, **kwargs)

    def product(s: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """Relevance of both factors of `a @ b.mT`."""
        to_a = a * (s @ b) + a.abs() * (s @ b.abs())
        to_b = b * (s.mT @ a) + b.abs() * (s.mT @ a.abs())
        return mass_one(flow, to_a), mass_one(flow, to_b)

    def back(carried: Tensor, z: Tensor) -> list[Tensor]:
        dtype = z.dtype
        probabilities, values, logits = record.probabilities().to(dtype), record.values(), record.logits().to(dtype)
        to_attention, turned = product(_weights(carried, z), probabilities, values.mT)
        hidden = logits.isneginf()
        logits = logits.masked_fill(hidden, 0.0)
        sized = logits.abs().masked_fill(hidden, -torch.inf).softmax(-1).nan_to_num(0.0)
        s = _weights(to_attention, probabilities)
        to_logits = mass_one(flow, s * (logits * probabilities + logits.abs() * sized))
        to_query, to_keys = product(_weights(to_logits, logits), q.detach(), record.keys())
        return handed(flow, (to_query, grouped(to_keys, k), grouped(turned.mT, v)), (q, k, v))

    return node(flow, lambda: operation(q, k, v, **kwargs), back, *in_graph(q, k, v))


def _rules() -> Mapping[str, Callable[..., Any]]:
    layer = affine(Absolute())
    rules: dict[str, Callable[..., Any]] = dict.fromkeys(("linear", "convolution"), layer)
    rules |= dict.fromkeys(("activation", "matmul", "pool"), operation_rule)
    rules |= dict.fromkeys(("multiply", "divide", "negate"), scale_rule)
    rules |= dict.fromkeys(("add", "subtract"), sum_rule)
    return {
        **rules,
        "layer_norm": layer_norm_rule,
        "rms_norm": rms_norm_rule,
        "batch_norm": folded_norm(operation_rule),
        "softmax": softmax_rule,
        "attention": attention_rule,
        "gate": cut,
        "concatenate": joined,
    }


def absolute_rules() -> Composite:
    """The composite of absLRP."""
    return Composite("relevance", _rules())
