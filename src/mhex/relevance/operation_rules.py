"""Rules of every operation but affine layers: activations and norms, sums and averages, products and attention."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mhex.capture import AttentionRecord
from mhex.capture.hooks import on_gradient
from mhex.capture.operations import OUT_OF_PLACE, is_from
from mhex.relevance.arithmetic import Operation, at_least, divide, graph_operands, in_graph, slopes
from mhex.relevance.flow import Flow, Rule
from mhex.relevance.linear_rules import norm_settings

_MASKED = -100.0  # of masks of attention: some are minus infinity, some large negative numbers
Split = Callable[[Flow, Sequence[Tensor], Tensor, Tensor], list[Tensor]]
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


class Sum:
    """An addition or a subtraction: both terms, their factors, and the places of the inputs that are in the graph."""

    def __init__(self, operation: Operation, a: Any, b: Any, alpha: float = 1) -> None:
        name = operation.__name__
        self.terms = (a, b)
        self.factors = (-alpha, 1) if "rsub" in name else (1, -alpha if "sub" in name else alpha)
        self.places = graph_operands(a, b)
        self.inputs = [self.terms[place] for place in self.places]

    @cached_property
    def is_masking(self) -> bool:
        """True if a constant operand leaves numbers as they are or hides them; asked once, as a GPU has to answer."""
        if len(self.places) != 1:
            return False
        mask = self.terms[1 - self.places[0]]
        if not isinstance(mask, Tensor) or isinstance(mask, nn.Parameter):  # masks are not learned
            return False
        logits = self.inputs[0].shape
        if len(logits) < 3 or (len(logits) == 3 and logits[1] != logits[2]):  # tokens, not pairs of them
            return False
        return bool(((mask == 0) | (mask <= _MASKED)).all())


def plain_sum(flow: Flow, operation: Operation, *args: Any, **kwargs: Any) -> Any:
    """Gradient flow: the gradient is right; a constant term absorbs its share."""
    call = Sum(operation, *args, **kwargs)
    if len(call.places) == 2:
        return operation(*args, **kwargs)
    (place,), (x,) = call.places, call.inputs

    def back(carried: Tensor, y: Tensor) -> list[Tensor]:
        constant = call.terms[1 - place] * call.factors[1 - place]
        flow.lose((carried * constant).masked_fill(carried == 0, 0.0))  # masks are infinite
        return [(carried * call.factors[place]).sum_to_size(x.shape)]

    return flow.node(lambda: operation(*args, **kwargs), back, x)


def summed(split: Split) -> Rule:
    """Rule of sums in the relevance flow; `split` goes from terms, relevance and sum to the relevance of each term."""

    def rule(flow: Flow, operation: Operation, *args: Any, **kwargs: Any) -> Any:
        call = Sum(operation, *args, **kwargs)

        def back(carried: Tensor, y: Tensor) -> list[Tensor]:
            if call.is_masking:  # a mask of attention is no term
                return [carried.sum_to_size(call.inputs[0].shape)]
            terms = [term.detach().to(y) if isinstance(term, Tensor) else y.new_full((), term) for term in call.terms]
            values = [(term * factor).expand_as(y) for term, factor in zip(terms, call.factors, strict=True)]
            parts = split(flow, values, carried, y)
            for place, part in enumerate(parts):
                if place not in call.places:
                    flow.lose(part)
            return [parts[place].sum_to_size(call.terms[place].shape) for place in call.places]

        return flow.node(lambda: operation(*args, **kwargs), back, *call.inputs)

    return rule


def by_ratio(epsilon: float, floor: float = 0.0) -> Split:
    """Each term has its share in the sum, place by place; see `Flow.floor`."""

    def split(flow: Flow, terms: Sequence[Tensor], relevance: Tensor, y: Tensor) -> list[Tensor]:
        below = flow.floor(floor)
        by = at_least(y, torch.stack([term.abs() for term in terms]).sum(0), below) if below else y
        s = divide(relevance, by, epsilon)
        if y.is_cpu and bool(y.isfinite().all()):  # a GPU is not waited for
            return [term * s for term in terms]
        return [(term * s).masked_fill_(relevance == 0, 0.0) for term in terms]  # a mask with a bias in it

    return split


def renormalised(epsilon: float, floor: float = 0.0) -> Split:
    """The shares place by place, then scaled so that terms get what is theirs of the sample's relevance.

    With `p_a = a R / (a + b)` and sums over the sample, `R_a = p_a / sum p_a * |sum p_a| / (|sum p_a| + |sum p_b|) *
    sum R`: a term whose shares sum below 0 changes its sign. The sums run over each sample alone.
    """
    ratio = by_ratio(epsilon, floor)

    def split(flow: Flow, terms: Sequence[Tensor], relevance: Tensor, y: Tensor) -> list[Tensor]:
        parts = ratio(flow, terms, relevance, y)
        sums = [flow.total(part) for part in parts]
        scale = divide(flow.total(relevance), torch.stack(sums).abs().sum(0), 0.0)
        return [
            part.mul_(flow.spread(torch.where(total < 0, -scale, scale), part))
            for part, total in zip(parts, sums, strict=True)
        ]

    return split


def joined(flow: Flow, operation: Operation, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Rule of `"concatenate"`: the usual way back, and what constants such as class tokens are given is noted."""
    tensors = [tensor for tensor in tensors if tensor.dim() != 1 or len(tensor)]  # an empty cache of keys is left out
    places = graph_operands(*tensors)

    def back(carried: Tensor, y: Tensor) -> list[Tensor]:
        parts = torch.split(carried, [tensor.shape[dim] for tensor in tensors], dim)
        for place, part in enumerate(parts):
            if place not in places:
                flow.lose(part if flow.relevance else part * tensors[place])
        return [parts[place] for place in places]

    return flow.node(lambda: operation(tensors, dim), back, *in_graph(*tensors), counted=False)


def divides(operation: Operation) -> bool:
    """Whether the second operand is divided by."""
    return "div" in operation.__name__


def scaled(flow: Flow, operation: Operation, a: Any, b: Any = -1.0, **kwargs: Any) -> Any:
    """Rule of products and quotients, element by element: two activations share alike, a constant gets nothing."""
    if kwargs or (divides(operation) and isinstance(b, Tensor) and b.requires_grad):
        return NotImplemented
    operands = (a,) if "neg" in operation.__name__ else (a, b)
    inputs = [(a, b)[place] for place in graph_operands(a, b)]
    if not flow.relevance and len(inputs) == 1:
        return operation(*operands)

    def back(carried: Tensor, y: Tensor) -> list[Tensor]:
        share = 1 / len(inputs)
        if flow.relevance:
            return [(carried * share).sum_to_size(x.shape) for x in inputs]
        return [(carried * b * share).sum_to_size(a.shape), (carried * a * share).sum_to_size(b.shape)]

    return flow.node(lambda: operation(*operands), back, *inputs)


def halved(epsilon: float, floor: float = 0.0) -> Rule:
    """Rule of `"matmul"` and `"pool"`: of two activations, each is given half; one beside a constant is given all."""
    # The floor is that of sums, for the terms that the product or average adds up; attention times values has none.

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
            gradients = slopes(operation, args, kwargs, places, s * share)
            if not flow.relevance:
                return list(gradients)
            return [args[place].detach() * slope for place, slope in zip(places, gradients, strict=True)]

        return flow.node(lambda: operation(*args, **kwargs), back, *(args[place] for place in places))

    return rule


def constant_attention(flow: Flow, operation: Operation, q: Tensor, k: Tensor, v: Tensor, **kwargs: Any) -> Tensor:
    """Gradient flow: attention probabilities are constants, and relevance flows to the values alone."""
    masked = kwargs.get("attn_mask") is not None or kwargs.get("is_causal")
    if not masked or not v.requires_grad:  # the kernel's own gradient is the rule
        return operation(q.detach(), k.detach(), v, **kwargs)
    record = as_record(q, k, v, **kwargs)  # queries that may attend to nothing have no probabilities

    def back(carried: Tensor, z: Tensor) -> list[Tensor]:
        return [grouped(record.probabilities().to(z.dtype).mT @ carried, v)]

    return flow.node(lambda: operation(q, k, v, **kwargs), back, v)


def shared_attention(flow: Flow, operation: Operation, q: Tensor, k: Tensor, v: Tensor, **kwargs: Any) -> Tensor:
    """Gradient flow: both factors of both products share alike, which is 1/4, 1/4 and 1/2 of the gradients."""

    def weighed(x: Tensor, share: float) -> Tensor:
        return flow.node(x.clone, lambda carried, _: [carried * share], x) if x.requires_grad else x

    return operation(weighed(q, 0.25), weighed(k, 0.25), weighed(v, 0.5), **kwargs)


def halved_attention(epsilon: float, floor: float = 0.0) -> Rule:
    """Rule of `"attention"` in the relevance flow: the matrix products share alike, softmax passes relevance on."""
    # The floor is that of sums, for the terms that the product of queries and keys adds up.

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
            return handed(flow, (to_query, to_keys, to_values), (q, k, v))

        return flow.node(lambda: operation(q, k, v, **kwargs), back, *in_graph(q, k, v))

    return rule


def as_record(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, **options: Any) -> AttentionRecord:
    """What a call of scaled-dot-product attention computes."""
    scale, causal = options.get("scale"), options.get("is_causal", False)
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    return AttentionRecord(q.detach(), k.detach(), v.detach(), attn_mask, factor, causal, None)


def handed(flow: Flow, relevances: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    """What is handed to the inputs of the graph; what others (a learned query) would be given is noted as lost."""
    pairs = [(grouped(relevance, x), x) for relevance, x in zip(relevances, inputs, strict=True)]
    for relevance, x in pairs:
        if not x.requires_grad:
            flow.lose(relevance)
    return [relevance for relevance, x in pairs if x.requires_grad]


def grouped(per_head: Tensor, like: Tensor) -> Tensor:
    """Sum over the query heads that share keys or values."""
    if per_head.shape[1] == like.shape[1]:
        return per_head
    batch, _, tokens, width = per_head.shape
    return per_head.reshape(batch, like.shape[1], -1, tokens, width).sum(2)
