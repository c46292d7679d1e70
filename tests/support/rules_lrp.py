"""The rules of relevance propagation a second time, from their formulas.

Relevance itself is handed down everywhere, also where the library carries gradients. Layers come in two forms: as a
dense matrix `z_ij = x_i w_ij` with a loop over neurons (tiny networks), and split by signs into four products.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from support.tape import Call, Rule, folds


def over(number: Tensor, y: Tensor, epsilon: float = 0.0) -> Tensor:
    """`number / (y + epsilon sgn(y))` with `sgn(0) = 1`, and 0 where the divisor is 0."""
    below = torch.where(y >= 0, y + epsilon, y - epsilon)
    return torch.where(below == 0, 0.0, number / torch.where(below == 0, 1.0, below))


def lifted(y: Tensor, sizes: Tensor, floor: float) -> Tensor:
    """`y`, or where it is smaller than a share of the sizes of its terms, that share with the sign of `y`."""
    least = floor * sizes
    return torch.where(y.abs() >= least, y, torch.where(y >= 0, least, -least))


# --- layers ----------------------------------------------------------------------------------------------------------


@dataclass
class Layer:
    """A linear layer or a convolution, with a batch norm after it already folded in.

    Attributes:
        x: What enters.
        w: Weight, as `apply` takes it.
        b: Bias, of the shape of the output; zeros without one.
        apply: From inputs and weights to outputs without a bias.
    """

    x: Tensor
    w: Tensor
    b: Tensor
    apply: Callable[[Tensor, Tensor], Tensor]

    def back(self, s: Tensor, w: Tensor) -> Tensor:
        """Transposed product."""
        with torch.enable_grad():
            x = torch.zeros_like(self.x).requires_grad_()
            return torch.autograd.grad(self.apply(x, w), x, s)[0]

    def matrix(self) -> Tensor:
        """(outputs, inputs): what each input alone gives, when it is 1."""
        units = torch.eye(self.x.numel(), dtype=self.x.dtype)
        return self.apply(units.reshape(-1, *self.x.shape[1:]), self.w).reshape(len(units), -1).t()


def layer_of(call: Call) -> Layer:
    """What a call computes; of a batch norm, together with the layer before it."""
    if call.name == "native_batch_norm":
        layer = layer_of(call.source)
        _, gamma, beta, mean, var, training, _, eps = call.args
        assert not training
        factor = (1.0 if gamma is None else gamma) / torch.sqrt(var + eps)
        shape = (-1, *[1] * (call.y.dim() - 2))
        shift = (0.0 if beta is None else beta) - mean * factor
        on_weight = factor if call.source.name != "convolution" else factor.reshape(-1, *[1] * (layer.w.dim() - 1))
        return Layer(layer.x, layer.w * on_weight, layer.b * factor.reshape(shape) + shift.reshape(shape), layer.apply)
    if call.name == "convolution":
        x, w, b, *geometry = call.args
        zeros = torch.zeros_like(call.y)
        bias = zeros if b is None else zeros + b.reshape(-1, *[1] * (x.dim() - 2))
        return Layer(x, w, bias, lambda x, w: torch.ops.aten.convolution.default(x, w, None, *geometry))
    x, w = call.args[-2:]
    assert not call.touched(len(call.args) - 1)
    bias = call.args[0] if call.name == "addmm" else 0.0
    return Layer(x, w, torch.zeros_like(call.y) + bias, lambda x, w: x @ w)


Neuron = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def dense(neuron: Neuron) -> Rule:
    """A layer as a matrix: `neuron(z, b, R, x, w)` is the relevance (inputs,) that one neuron hands down.

    `z = x * w` are the contributions (inputs,) to it, `b` its bias and `R` its relevance.
    """

    def rule(call: Call, relevance: Tensor) -> list[Tensor]:
        layer = layer_of(call)
        x, total = layer.x.flatten(), torch.zeros(layer.x.numel(), dtype=layer.x.dtype)
        for w, b, r in zip(layer.matrix(), layer.b.flatten(), relevance.flatten(), strict=True):
            total += neuron(x * w, b, r, x, w)
        return [total.reshape(layer.x.shape)]

    return rule


def epsilon_neuron(epsilon: float) -> Neuron:
    return lambda z, b, r, x, w: z * over(r, z.sum() + b, epsilon)


def alphabeta_neuron(alpha: float, epsilon: float = 0.0) -> Neuron:
    def hand_down(z: Tensor, b: Tensor, r: Tensor, x: Tensor, w: Tensor) -> Tensor:
        up, down = z.clamp_min(0), z.clamp_max(0)
        return (alpha * over(up, up.sum(), epsilon) - (alpha - 1) * over(down, down.sum(), epsilon)) * r

    return hand_down


def gamma_neuron(gamma: float, epsilon: float) -> Neuron:
    def hand_down(z: Tensor, b: Tensor, r: Tensor, x: Tensor, w: Tensor) -> Tensor:
        both = torch.cat([z, b.reshape(1)])  # the bias is the contribution of an input of 1
        favoured = both.clamp_min(0) if both.sum() >= 0 else both.clamp_max(0)
        replaced = both + gamma * favoured
        return (replaced * over(r, replaced.sum(), epsilon))[:-1]

    return hand_down


def box_neuron(epsilon: float) -> Neuron:
    def hand_down(z: Tensor, b: Tensor, r: Tensor, x: Tensor, w: Tensor) -> Tensor:
        parts = x * w - x.min() * w.clamp_min(0) - x.max() * w.clamp_max(0)
        return parts * over(r, parts.sum(), epsilon)

    return hand_down


def separate_neuron(epsilon: float = 1e-9) -> Neuron:
    def hand_down(z: Tensor, b: Tensor, r: Tensor, x: Tensor, w: Tensor) -> Tensor:
        one, two = x.clamp_min(0) * w.clamp_min(0), x.clamp_max(0) * w.clamp_max(0)
        return one * over(r, one.sum(), epsilon) + two * over(r, two.sum(), epsilon)

    return hand_down


def split(kind: str, epsilon: float, value: float = 0.0) -> Rule:
    """The same rules by products of positive and negative parts, for layers too large for a matrix."""

    def rule(call: Call, relevance: Tensor) -> list[Tensor]:
        layer = layer_of(call)
        x, w, b = layer.x, layer.w, layer.b
        xp, xn, wp, wn = x.clamp_min(0), x.clamp_max(0), w.clamp_min(0), w.clamp_max(0)
        y = layer.apply(x, w) + b
        up = layer.apply(xp, wp) + layer.apply(xn, wn)
        down = layer.apply(xp, wn) + layer.apply(xn, wp)

        def give_up(s: Tensor) -> Tensor:
            return xp * layer.back(s, wp) + xn * layer.back(s, wn)

        def give_down(s: Tensor) -> Tensor:
            return xp * layer.back(s, wn) + xn * layer.back(s, wp)

        if kind == "epsilon":
            return [x * layer.back(over(relevance, y, epsilon), w)]
        if kind == "alphabeta":
            found = value * give_up(over(relevance, up, epsilon))
            return [found - (value - 1) * give_down(over(relevance, down, epsilon))] if value != 1 else [found]
        if kind == "gamma":
            positive = y >= 0
            favoured = torch.where(positive, up + b.clamp_min(0), down + b.clamp_max(0))
            s = over(relevance, y + value * favoured, epsilon)
            plain = x * layer.back(s, w)
            return [plain + value * (give_up(s * positive) + give_down(s * ~positive))]
        assert kind == "box"
        low, high = torch.full_like(x, float(x.min())), torch.full_like(x, float(x.max()))
        s = over(relevance, layer.apply(x, w) - layer.apply(low, wp) - layer.apply(high, wn), epsilon)
        return [x * layer.back(s, w) - low * layer.back(s, wp) - high * layer.back(s, wn)]

    return rule


# --- operations without a weight -------------------------------------------------------------------------------------


def route(call: Call, relevance: Any) -> list[Tensor]:
    return call.back(relevance)


def passed(call: Call, relevance: Tensor) -> list[Tensor]:
    return [relevance]


def shared(call: Call, relevance: Tensor) -> list[Tensor]:
    """Products element by element: factors that depend on the input share alike."""
    return [(relevance / len(call.xs)).sum_to_size(x.shape) for x in call.xs]


def pooled(epsilon: float, floor: float = 0.0) -> Rule:
    def rule(call: Call, relevance: Tensor) -> list[Tensor]:
        below = lifted(call.y, call.run(call.xs[0].abs()), floor)
        return [call.xs[0] * call.back(over(relevance, below, epsilon))[0]]

    return rule


def terms_of(call: Call) -> list[tuple[Any, Tensor]]:
    """Terms of a sum, each with its node and broadcast to the sum."""
    a, b = call.args[:2]
    alpha = call.kwargs.get("alpha", 1)
    one, two = {"add": (1, alpha), "sub": (1, -alpha), "rsub": (-alpha, 1)}[call.name]
    zeros = torch.zeros_like(call.y)
    return [(call.node.args[0], zeros + a * one), (call.node.args[1], zeros + b * two)]


def added(epsilon: float, renormalised: bool = False, floor: float = 0.0) -> Rule:
    """Shares `a R / (a + b)`; renormalised, scaled so that each term has its part of what the sample has."""

    def rule(call: Call, relevance: Tensor) -> list[Tensor]:
        nodes, terms = zip(*terms_of(call), strict=True)
        below = lifted(call.y, terms[0].abs() + terms[1].abs(), floor) if floor else call.y
        parts = [term * over(relevance, below, epsilon) for term in terms]
        if renormalised:
            sums = [float(part.sum()) for part in parts]
            whole = sum(map(abs, sums))
            parts = [
                part / total * (abs(total) / whole) * relevance.sum() if total != 0 else part * 0
                for part, total in zip(parts, sums, strict=True)
            ]
        found: list[Tensor] = []
        for node, x in zip(call.nodes, call.xs, strict=True):
            both = [part.sum_to_size(x.shape) for other, part in zip(nodes, parts, strict=True) if other is node]
            found.append(sum(both[1:], both[0]))  # x + x has one input
        return found

    return rule


def halved(epsilon: float, floor: float = 0.0) -> Rule:
    """`R_U = U ((R / Y) V^T) / 2`, likewise for V; of one activation and a constant, all goes to the activation."""

    def rule(call: Call, relevance: Tensor) -> list[Tensor]:
        below = call.y if call.weighs else lifted(call.y, call.args[0].abs() @ call.args[1].abs(), floor)
        s = over(relevance, below, epsilon) / len(call.xs)
        return [x * back for x, back in zip(call.xs, call.back(s), strict=True)]

    return rule


def scored(epsilon: float, mask_absorbs: bool, floor: float = 0.0) -> Rule:
    """The logits of attention, `m + scale q k^T`: half to each factor, also to a constant one (a learned query)."""

    def rule(call: Call, relevance: Tensor) -> list[Tensor]:
        m, q, k = call.args
        scale = call.kwargs["alpha"]
        below = torch.where(m == -torch.inf, 1.0, m + scale * q @ k) if mask_absorbs else scale * q @ k
        below = lifted(below, scale * q.abs() @ k.abs(), floor)
        s = scale * over(relevance, below, epsilon) / 2
        parts = {1: q * (s @ k.mT), 2: k * (q.mT @ s)}
        return [parts[place] for place in (1, 2) if call.touched(place)]

    return rule


def expanded_softmax(call: Call, relevance: Tensor) -> list[Tensor]:
    """`R_l = l (R_A - A sum R_A)`, with l = 0 where it is masked."""
    logits, a = call.xs[0], call.y
    logits = torch.where(logits == -torch.inf, 0.0, logits)
    return [logits * (relevance - a * relevance.sum(-1, keepdim=True))]


def frozen_layer_norm(call: Call, relevance: Tensor) -> list[Tensor]:
    """`R_i = sum_j x_i (delta_ij - 1/D) gamma_j / sigma R_j / y_j`, the offset beta absorbing its share."""
    x, shape, gamma, _, eps = call.args
    rows, width = x.reshape(-1, x.shape[-1]), x.shape[-1]
    assert list(shape) == [width]
    centring = torch.eye(width, dtype=x.dtype) - 1 / width
    found = []
    for row, r, y in zip(rows, relevance.reshape(rows.shape), call.y.reshape(rows.shape), strict=True):
        sigma = ((row - row.mean()).square().mean() + eps).sqrt()
        z = row[:, None] * centring * (torch.ones_like(row) if gamma is None else gamma)[None, :] / sigma
        found.append(z @ over(r, y))
    return [torch.stack(found).reshape(x.shape)]


def linear_norm(call: Call, relevance: Tensor) -> list[Tensor]:
    """A batch norm that follows no layer: the part that is linear in x."""
    return [call.xs[0] * call.back(over(relevance, call.y))[0]]


def slope(call: Call, relevance: Tensor) -> list[Tensor]:
    """Plain gradient of an activation: `R_x = x phi'(x) R_y / phi(x)`."""
    return [call.xs[0] * call.back(over(relevance, call.y))[0]]


# --- variants --------------------------------------------------------------------------------------------------------


def with_layers(
    rules: dict[str, Rule],
    linear: Rule,
    convolution: Rule,
    alone: Rule,
    entrance: Rule | None,
    projection: Rule | None = None,
) -> dict[str, Rule]:
    """Add the rules of layers, and of batch norms folded into them."""

    def chosen(layer: Call, usual: Rule) -> Rule:
        if projection is not None and layer.projects:
            return projection
        return entrance if layer.first and entrance else usual

    def layer(usual: Rule) -> Rule:
        return lambda call, relevance: chosen(call, usual)(call, relevance)

    def batch_norm(call: Call, relevance: Tensor) -> list[Tensor]:
        if not folds(call):
            return alone(call, relevance)
        return chosen(call.source, convolution if call.source.name == "convolution" else linear)(call, relevance)

    return {**rules, "linear": layer(linear), "convolution": layer(convolution), "batch_norm": batch_norm}


def relevance_rules(
    layer: Rule, entrance: Rule | None, epsilon: float, renormalised: bool, floor: float = 0.0
) -> dict[str, Rule]:
    """Sections 5.1 to 5.3: softmax, norms and activations pass relevance on."""
    rules: dict[str, Rule] = {
        **dict.fromkeys(("layer_norm", "softmax", "activation"), passed),
        "route": route,
        "product": shared,
        "sum": added(epsilon, renormalised, floor),
        "pool": pooled(epsilon, floor),
        "matmul": halved(epsilon, floor),
        "scores": scored(epsilon, mask_absorbs=False, floor=floor),
    }
    return with_layers(rules, layer, layer, passed, entrance)


def gradient_rules(
    linear: Rule, convolution: Rule, activation: Rule = passed, projection: Rule | None = None
) -> dict[str, Rule]:
    """Sections 5.4 and 5.5: no stabilisers. With `cut=("gate", "softmax")` attention is constant."""
    rules: dict[str, Rule] = {
        "layer_norm": frozen_layer_norm,
        "softmax": expanded_softmax,
        "activation": activation,
        "route": route,
        "product": shared,
        "sum": added(0.0),
        "pool": pooled(0.0),
        "matmul": halved(0.0),
        "scores": scored(0.0, mask_absorbs=True),
    }
    return with_layers(rules, linear, convolution, linear_norm, None, projection)
