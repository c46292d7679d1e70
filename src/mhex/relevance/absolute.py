"""The rules of absLRP: positive contributions over the absolute output, and mass 1 after every operation.

For an operation `f` and the same with absolute constants `f'`: `s = R / (|f(x)| + 1e-9)`, `R_in = x * (J_f(x)^T s +
sgn(x) J_f'(|x|)^T s)`, divided by its sum of absolute values over the sample. Every operand is scaled by itself.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from mhex.relevance.arithmetic import Operation, divide, graph_operands, in_graph, slopes
from mhex.relevance.flow import Composite, Flow, Rule, used_once
from mhex.relevance.linear_rules import Affine, Shares, affine, folded_norm
from mhex.relevance.operation_rules import LayerNorm, Sum, as_record, cut, divides, handed, joined, layer_norm_rule

_LEAST = 1e-9
_HIDDEN = torch.finfo(torch.float32).tiny  # what a mask leaves of a probability is smaller


def mass_one(flow: Flow, relevance: Tensor, x: Tensor) -> Tensor:
    """Relevance of `x`, whose absolute values sum to 1 in every sample; zeros stay zeros."""
    # Rules are linear in relevance, so its size matters only where it is added to that from another operation.
    if used_once(x):
        return relevance
    mass = flow.total(relevance.abs())  # faster than a norm on a CPU
    return relevance * flow.spread(divide(torch.ones_like(mass), mass, 0.0), relevance)


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
    inputs = [args[place] for place in places]

    def size(value: Any) -> Any:
        return value.detach().abs() if isinstance(value, Tensor) and value.is_floating_point() else value

    def back(carried: Tensor, y: Tensor) -> list[Tensor]:
        s, sizes = _weights(carried, y), [size(value) for value in args]
        options = {name: size(value) for name, value in kwargs.items()}
        plain, sized = slopes(operation, args, kwargs, places, s), slopes(operation, sizes, options, places, s)
        triples = zip(inputs, plain, sized, strict=True)
        return [mass_one(flow, x.detach() * a + x.detach().abs() * b, x) for x, a, b in triples]

    return flow.node(lambda: operation(*args, **kwargs), back, *inputs)


def scale_rule(flow: Flow, operation: Operation, *args: Any, **kwargs: Any) -> Any:
    """Scaling by a constant; products of activations are as any operation."""
    places = graph_operands(*args)
    if kwargs or (1 in places and divides(operation)):
        return NotImplemented
    if len(places) == 2:
        return operation_rule(flow, operation, *args)
    return positive_outputs(flow, operation, *args)


def positive_outputs(flow: Flow, operation: Operation, *args: Any, **kwargs: Any) -> Tensor:
    """Scaling by a constant, or by the length of `x`, which is that of `|x|` too: positive outputs have relevance."""
    (x,) = in_graph(*args)

    def back(carried: Tensor, y: Tensor) -> list[Tensor]:
        return [mass_one(flow, y.clamp_min(0).mul_(_weights(carried, y)).sum_to_size(x.shape), x)]

    return flow.node(lambda: operation(*args, **kwargs), back, x)


def sum_rule(flow: Flow, operation: Operation, *args: Any, **kwargs: Any) -> Tensor:
    """Both terms of a sum are scaled by themselves, so the larger one gets no more than the other."""
    # A mask that is added to the logits of attention is no term: what it leaves keeps its relevance.
    call = Sum(operation, *args, **kwargs)

    def back(carried: Tensor, y: Tensor) -> list[Tensor]:
        if call.is_masking:
            (x,) = call.inputs
            return [mass_one(flow, carried.sum_to_size(x.shape), x)]
        s, pairs = _weights(carried, y), zip(call.places, call.inputs, strict=True)
        shares = [((x.detach() * call.factors[place]).clamp_(min=0) * s, x) for place, x in pairs]
        return [mass_one(flow, share.sum_to_size(x.shape), x) for share, x in shares]

    return flow.node(lambda: operation(*args, **kwargs), back, *call.inputs)


@layer_norm_rule
def absolute_layer_norm(flow: Flow, call: LayerNorm, carried: Tensor, y: Tensor) -> Tensor:
    """Mean and variance are constants, those of `|x|` for the absolute operation."""
    x = call.input.detach()
    signed, sized = x * call.rstd.to(x.dtype), x.abs().mul_(call.rstd_of_sizes)
    if call.weight is not None:
        signed, sized = signed.mul_(call.weight), sized.mul_(call.weight.abs())
    return mass_one(flow, signed.add_(sized).mul_(_weights(carried, y)), call.input)


def activation_rule(flow: Flow, operation: Operation, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Element by element: `R` times `(x phi'(x) + |x| phi'(|x|)) / |phi(x)|`, kept for several passes."""

    @cache
    def factor() -> Tensor:
        plain, sized = (slopes(operation, (v, *args), kwargs, [0], v)[0] for v in (x.detach(), x.detach().abs()))
        return plain.add_(sized)

    def back(carried: Tensor, y: Tensor) -> list[Tensor]:
        return [mass_one(flow, _weights(carried, y).mul_(factor()), x)]

    return flow.node(lambda: operation(x, *args, **kwargs), back, x)


def softmax_rule(flow: Flow, operation: Operation, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """The denominator is a constant, that of `|x|` for the absolute operation; masked entries have no part in it."""

    def back(carried: Tensor, y: Tensor) -> list[Tensor]:
        hidden = x.isneginf() | (y < _HIDDEN)
        finite = x.detach().masked_fill(hidden, 0.0)
        sized = operation(x.detach().abs().masked_fill(hidden, -torch.inf), *args, **kwargs)
        return [mass_one(flow, _weights(carried, y) * (finite * y + finite.abs() * sized), x)]

    return flow.node(lambda: operation(x, *args, **kwargs), back, x)


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
        relevances = [mass_one(flow, part, x if part.shape == x.shape else part) for part, x in pairs]
        return handed(flow, relevances, (q, k, v))

    return flow.node(lambda: operation(q, k, v, **kwargs), back, *in_graph(q, k, v))


def absolute_rules() -> Composite:
    """The composite of absLRP."""
    rules: dict[str, Rule] = {
        **dict.fromkeys(("linear", "convolution"), affine(Absolute())),
        **dict.fromkeys(("matmul", "pool"), operation_rule),
        **dict.fromkeys(("multiply", "divide", "negate"), scale_rule),
        **dict.fromkeys(("add", "subtract"), sum_rule),
        **dict.fromkeys(("gate", "length"), cut),
        "activation": activation_rule,
        "layer_norm": absolute_layer_norm,
        "rms_norm": positive_outputs,
        "batch_norm": folded_norm(operation_rule),
        "softmax": softmax_rule,
        "attention": attention_rule,
        "concatenate": joined,
    }
    return Composite("relevance", rules)
