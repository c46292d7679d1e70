"""The rules of absLRP: positive contributions over the absolute output, and mass 1 after every operation.

For an operation `f` and the same with absolute constants `f'`: `s = R / (|f(x)| + 1e-9)`, `R_in = x * (J_f(x)^T s +
sgn(x) J_f'(|x|)^T s)`, divided by its sum of absolute values over the sample. Every operand is scaled by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from mhex.relevance.affine import Shares, affine, folded_norm
from mhex.relevance.composite import Composite
from mhex.relevance.elementwise import cut
from mhex.relevance.flow import Flow
from mhex.relevance.layers import Affine
from mhex.relevance.node import divide, graph_operands, node, used_once
from mhex.relevance.products import as_record, divides, grouped, handed, in_graph
from mhex.relevance.sums import is_mask, joined, terms_of

Operation = Callable[..., Tensor]
_LEAST = 1e-9
_HIDDEN = torch.finfo(torch.float32).tiny  # what a mask leaves of a probability is smaller


def mass_one(flow: Flow, relevance: Tensor, x: Tensor) -> Tensor:
    """Relevance of `x`, whose absolute values sum to 1 in every sample; zeros stay zeros.

    Rules are linear in relevance, so its size matters only where it is added to that from another operation.
    """
    if used_once(x):
        return relevance
    mass = flow.mass(relevance)
    return relevance * flow.spread(divide(torch.ones_like(mass), mass, 0.0), relevance)


def fixed(value: Any) -> Any:
    """Tensors without their graph."""
    return value.detach() if isinstance(value, Tensor) else value


def _absolute(value: Any) -> Any:
    return value.abs() if isinstance(value, Tensor) and value.is_floating_point() else value


def _weights(relevance: Tensor, y: Tensor) -> Tensor:
    size = y.abs().add_(_LEAST)
    return torch.div(relevance, size, out=size)


@dataclass(frozen=True)
class Absolute(Shares):
    """Affine layers: `R_i = 2 sum_j z_ij^+ R_j / |y_j|`, scaled to mass 1."""

    def hand_down(self, flow: Flow, layer: Affine, carried: Tensor, y: Tensor) -> Tensor:
        return mass_one(flow, layer.one_sign_back(_weights(carried, y), positive=True), layer.x)


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
        inputs = [args[place] for place in places]
        found = zip(inputs, slopes(s, False), slopes(s, True), strict=True)
        return [mass_one(flow, x.detach() * one + x.detach().abs() * other, x) for x, one, other in found]

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
        lambda carried, y: [mass_one(flow, y.clamp_min(0).mul_(_weights(carried, y)).sum_to_size(x.shape), x)],
        x,
    )


def sum_rule(flow: Flow, operation: Operation, *args: Any, **kwargs: Any) -> Tensor:
    """Both terms of a sum are scaled by themselves, so the larger one gets no more than the other.

    A mask that is added to the logits of attention is no term: what it leaves keeps its relevance.
    """
    terms, factors = terms_of(operation, *args, **kwargs)
    places = graph_operands(*terms)

    def back(carried: Tensor, y: Tensor) -> list[Tensor]:
        if len(places) == 1 and is_mask(terms[1 - places[0]]):
            return [mass_one(flow, carried.sum_to_size(terms[places[0]].shape), terms[places[0]])]
        s = _weights(carried, y)
        shares = [(terms[place].detach() * factors[place]).clamp_(min=0) * s for place in places]
        found = zip(shares, (terms[place] for place in places), strict=True)
        return [mass_one(flow, share.sum_to_size(term.shape), term) for share, term in found]

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
    shape = list(normalized_shape)
    kept: dict[str, Tensor] = {}

    def compute() -> Tensor:
        y, _, kept["of x"] = torch.native_layer_norm(input, shape, weight, bias, eps)
        return y

    @cache
    def scale_of_sizes() -> Tensor:
        return torch.native_layer_norm(input.detach().abs(), shape, None, None, eps)[2].to(input.dtype)

    def back(carried: Tensor, y: Tensor) -> list[Tensor]:
        s, x = _weights(carried, y), input.detach()
        signed, sized = (x * kept["of x"].to(x.dtype), x.abs().mul_(scale_of_sizes()))
        if weight is not None:
            signed, sized = signed.mul_(weight), sized.mul_(weight.abs())
        return [mass_one(flow, signed.add_(sized).mul_(s), input)]

    return node(flow, compute, back, input)


def _times_slope(operation: Operation, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    with torch.enable_grad():
        point = x.view_as(x).requires_grad_()
        return torch.autograd.grad(operation(point, *args, **kwargs), point, x)[0]


def activation_rule(flow: Flow, operation: Operation, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Element by element: `R` times `(x phi'(x) + |x| phi'(|x|)) / |phi(x)|`, kept for several passes."""

    @cache
    def factor() -> Tensor:
        return _times_slope(operation, x.detach(), *args, **kwargs).add_(
            _times_slope(operation, x.detach().abs(), *args, **kwargs)
        )

    def back(carried: Tensor, y: Tensor) -> list[Tensor]:
        return [mass_one(flow, _weights(carried, y).mul_(factor()), x)]

    return node(flow, lambda: operation(x, *args, **kwargs), back, x)


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
        return [mass_one(flow, y.clamp_min(0).mul_(_weights(carried, y)), input)]

    return node(flow, lambda: operation(input, normalized_shape, weight, eps), back, input)


def softmax_rule(flow: Flow, operation: Operation, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """The denominator is a constant, that of `|x|` for the absolute operation; masked entries have no part in it."""

    def back(carried: Tensor, y: Tensor) -> list[Tensor]:
        hidden = x.isneginf() | (y < _HIDDEN)
        finite = x.detach().masked_fill(hidden, 0.0)
        sized = operation(x.detach().abs().masked_fill(hidden, -torch.inf), *args, **kwargs)
        return [mass_one(flow, _weights(carried, y) * (finite * y + finite.abs() * sized), x)]

    return node(flow, lambda: operation(x, *args, **kwargs), back, x)


def attention_rule(flow: Flow, operation: Operation, q: Tensor, k: Tensor, v: Tensor, **kwargs: Any) -> Tensor:
    """The matrix products and the softmax of attention by the rules above."""
    record = as_record(q, k, v, **kwargs)

    def back(carried: Tensor, z: Tensor) -> list[Tensor]:
        query, keys, values = q.detach(), record.keys(), record.values()
        logits = record.logits().to(z.dtype)
        probabilities = logits.softmax(-1).nan_to_num_(0.0)  # of a query that may attend to nothing
        s, positive = _weights(carried, z), values.clamp_min(0)
        to_values = (probabilities.mT @ s).mul_(positive)
        to_attention = mass_one(flow, (s @ positive.mT).mul_(probabilities), probabilities)
        hidden = probabilities < _HIDDEN if record.mask is not None or record.causal else None
        logits = logits if hidden is None else logits.masked_fill(hidden, 0.0)
        sizes = logits.abs()
        sized = (sizes if hidden is None else sizes.masked_fill(hidden, -torch.inf)).softmax(-1).nan_to_num_(0.0)
        s = _weights(to_attention, probabilities)
        to_logits = mass_one(flow, torch.addcmul(logits * probabilities, sizes, sized).mul_(s), logits)
        s = to_logits.div_(sizes.add_(_LEAST))
        to_query = torch.addcmul((s @ keys).mul_(query), query.abs(), s @ keys.abs())
        to_keys = torch.addcmul((s.mT @ query).mul_(keys), keys.abs(), s.mT @ query.abs())
        pairs = ((to_query, q), (to_keys, k), (to_values, v))
        found = [mass_one(flow, one, x if one.shape == x.shape else one) for one, x in pairs]
        return handed(flow, [grouped(one, x) for one, (_, x) in zip(found, pairs, strict=True)], (q, k, v))

    return node(flow, lambda: operation(q, k, v, **kwargs), back, *in_graph(q, k, v))


def _rules() -> Mapping[str, Callable[..., Any]]:
    layer = affine(Absolute())
    rules: dict[str, Callable[..., Any]] = dict.fromkeys(("linear", "convolution"), layer)
    rules |= dict.fromkeys(("matmul", "pool"), operation_rule)
    rules |= dict.fromkeys(("multiply", "divide", "negate"), scale_rule)
    rules |= dict.fromkeys(("add", "subtract"), sum_rule)
    return {
        **rules,
        "activation": activation_rule,
        "layer_norm": layer_norm_rule,
        "rms_norm": rms_norm_rule,
        "batch_norm": folded_norm(operation_rule),
        "softmax": softmax_rule,
        "attention": attention_rule,
        "gate": cut,
        "length": cut,
        "concatenate": joined,
    }


def absolute_rules() -> Composite:
    """The composite of absLRP."""
    return Composite("relevance", _rules())
