"""The rules of absLRP a second time: positive contributions over the absolute output, each input scaled to mass 1."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from support.rules_lrp import Neuron, dense, layer_of, masked_sum, route, terms_of, with_layers
from support.tape import Call, Rule


def mass_one(relevance: Tensor) -> Tensor:
    mass = float(relevance.abs().sum())
    return relevance / mass if mass else relevance


def absolute_neuron(z: Tensor, b: Tensor, r: Tensor, x: Tensor, w: Tensor) -> Tensor:
    return 2 * z.clamp_min(0) * r / ((z.sum() + b).abs() + 1e-9)


def absolute_layer(call: Call, relevance: Tensor) -> list[Tensor]:
    """The same by products of parts."""
    layer = layer_of(call)
    x, w = layer.x, layer.w
    s = 2 * relevance / ((layer.apply(x, w) + layer.b).abs() + 1e-9)
    up = x.clamp_min(0) * layer.back(s, w.clamp_min(0)) + x.clamp_max(0) * layer.back(s, w.clamp_max(0))
    return [mass_one(up)]


def _absolute(
    function: Callable[..., Tensor], positive: Callable[..., Tensor], xs: list[Tensor], y: Tensor, r: Tensor
) -> list[Tensor]:
    """`x (J_f(x)^T s + sgn(x) J_f'(|x|)^T s)` with `s = R / (|f(x)| + 1e-9)`, each input scaled to mass 1."""
    s = r / (y.abs() + 1e-9)

    def back(f: Callable[..., Tensor], values: list[Tensor]) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            points = [value.detach().requires_grad_() for value in values]
            return torch.autograd.grad(f(*points), points, s)

    plain, sized = back(function, xs), back(positive, [x.abs() for x in xs])
    return [mass_one(x * (a + x.sign() * b)) for x, a, b in zip(xs, plain, sized, strict=True)]


def absolute(call: Call, relevance: Tensor) -> list[Tensor]:
    """Operations without parameters: the absolute operation is the same one."""
    return _absolute(call.run, call.run, call.xs, call.y, relevance)


def absolute_product(call: Call, relevance: Tensor) -> list[Tensor]:
    if len(call.nodes) == 2:
        return absolute(call, relevance)
    factor = call.run(torch.ones_like(call.xs[0]))
    return _absolute(lambda x: x * factor, lambda x: x * factor.abs(), call.xs, call.y, relevance)


def absolute_sum(call: Call, relevance: Tensor) -> list[Tensor]:
    if masked_sum(call):
        return [mass_one(relevance.sum_to_size(call.xs[0].shape))]
    nodes, terms = zip(*terms_of(call), strict=True)
    s = relevance / (call.y.abs() + 1e-9)
    found = []
    for node, x in zip(call.nodes, call.xs, strict=True):
        both = [
            mass_one((2 * t.clamp_min(0) * s).sum_to_size(x.shape))
            for n, t in zip(nodes, terms, strict=True)
            if n is node
        ]
        found.append(sum(both[1:], both[0]))
    return found


def absolute_layer_norm(call: Call, relevance: Tensor) -> list[Tensor]:
    x, shape, gamma, beta, eps = call.args
    gamma = torch.ones(shape, dtype=x.dtype) if gamma is None else gamma
    beta = torch.zeros(shape, dtype=x.dtype) if beta is None else beta

    def norm(at: Tensor, scale: Tensor) -> Callable[[Tensor], Tensor]:
        mean, sigma = at.mean(-1, keepdim=True), (at.var(-1, keepdim=True, unbiased=False) + eps).sqrt()
        return lambda one: (one - mean) / sigma * scale + beta

    return _absolute(norm(x, gamma), norm(x.abs(), gamma.abs()), [x], call.y, relevance)


def absolute_softmax(call: Call, relevance: Tensor) -> list[Tensor]:
    logits = call.xs[0]
    hidden = call.y < 1.2e-38  # by a mask of minus infinity, or of large negative numbers
    finite = torch.where(hidden, 0.0, logits)

    def share(at: Tensor) -> Callable[[Tensor], Tensor]:
        whole = torch.where(hidden, 0.0, at.exp()).sum(-1, keepdim=True)
        return lambda one: torch.where(hidden, 0.0, one.exp()) / whole

    return _absolute(share(finite), share(finite.abs()), [finite], call.y, relevance)


def absolute_scores(call: Call, relevance: Tensor) -> list[Tensor]:
    m, q, k = call.args
    logits = torch.where(m == -torch.inf, 0.0, m + call.kwargs["alpha"] * q @ k)
    found = _absolute(torch.bmm, torch.bmm, [q, k], logits, relevance)
    return [found[place - 1] for place in (1, 2) if call.touched(place)]


def absolute_norm(call: Call, relevance: Tensor) -> list[Tensor]:
    """A batch norm that follows no layer, with the absolute factor and offset."""
    _, gamma, beta, mean, var, _, _, eps = call.args

    def positive(x: Tensor) -> Tensor:
        return F.batch_norm(x, mean.abs(), var, gamma.abs(), beta.abs(), eps=eps)

    return _absolute(call.run, positive, call.xs, call.y, relevance)


def absolute_rules(layer: Rule = absolute_layer) -> dict[str, Rule]:
    """Section 5.6."""
    rules: dict[str, Rule] = {
        **dict.fromkeys(("activation", "pool", "matmul"), absolute),
        "layer_norm": absolute_layer_norm,
        "softmax": absolute_softmax,
        "scores": absolute_scores,
        "route": route,
        "product": absolute_product,
        "sum": absolute_sum,
    }
    return with_layers(rules, layer, layer, absolute_norm, None)


def scaled_dense(neuron: Neuron) -> Rule:
    """Dense layers of absLRP, with mass 1."""
    rule = dense(neuron)
    return lambda call, relevance: [mass_one(part) for part in rule(call, relevance)]
