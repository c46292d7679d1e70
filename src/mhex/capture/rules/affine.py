"""Rules of linear layers and convolutions, a batch norm after them folded in.

With `z_ij = x_i w_ij`, every rule here hands down `R_i = sum_j z_ij a_j + sum_j |z_ij| b_j`: it only says what `a` and
`b` are. The positive part of a sum is `(sum_j |z_ij| + sum_j z_ij) / 2`, so one further product, of `|x|` and `|W|`,
serves all rules that tell signs apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mhex.capture.rules.flow import Flow, divide, node
from mhex.capture.rules.layer import Affine, norm_settings, read_layer


class Shares:
    """A rule of affine layers, called with what the backward pass carries to `y`."""

    def shares(self, flow: Flow, layer: Affine, carried: Tensor, y: Tensor) -> tuple[Tensor, Tensor | None]:
        """`a` and `b` (None for zero), of the shape of `y`; what the bias absorbs is noted in the flow."""
        raise NotImplementedError

    def factors(self, flow: Flow, x: Tensor) -> tuple[Tensor, Tensor]:
        """What `W^T a` and `|W|^T b` are multiplied with, in the relevance flow."""
        return x, x.abs()

    def hand_down(self, flow: Flow, layer: Affine, carried: Tensor, y: Tensor) -> Tensor:
        """What the backward pass carries to `x`."""
        a, b = self.shares(flow, layer, carried, y)
        plain = layer.transposed(a, layer.weight)
        sized = None if b is None else layer.transposed(b, layer.weight.abs())
        if not flow.relevance:
            return plain if sized is None else plain + layer.x.sign() * sized
        one, other = self.factors(flow, layer.x)
        return one * plain if sized is None else one * plain + other * sized


@dataclass(frozen=True)
class Epsilon(Shares):
    """LRP-epsilon: `a = R / stab(y)`; the bias absorbs its share."""

    epsilon: float = 1e-6

    def shares(self, flow: Flow, layer: Affine, carried: Tensor, y: Tensor) -> tuple[Tensor, Tensor | None]:
        exact = self.epsilon == 0 and not flow.relevance  # then the gradient is the rule
        a = carried if exact else divide(flow.incoming(carried, y), y, self.epsilon)
        if layer.bias is not None:
            flow.lose(a * layer.on_outputs(layer.bias))
        return a, None


@dataclass(frozen=True)
class AlphaBeta(Shares):
    """`alpha` of the positive and `1 - alpha` of the negative contributions, each over its own sum; biases ignored."""

    alpha: float = 1.0
    epsilon: float = 1e-6

    def shares(self, flow: Flow, layer: Affine, carried: Tensor, y: Tensor) -> tuple[Tensor, Tensor | None]:
        relevance, magnitude, plain = flow.incoming(carried, y), layer.magnitude(), layer.unbiased(y)
        # Where there is no contribution of a sign, rounding must not be taken for one.
        least = magnitude * (64 * torch.finfo(y.dtype).eps)
        positive, negative = (magnitude + plain) / 2, (magnitude - plain) / 2
        up = (relevance / (positive + self.epsilon)).where(positive > least, 0.0) * (self.alpha / 2)
        if self.alpha == 1:
            return up, up
        down = (relevance / (negative + self.epsilon)).where(negative > least, 0.0) * ((self.alpha - 1) / 2)
        return up + down, up - down


@dataclass(frozen=True)
class Gamma(Shares):
    """LRP-gamma, generalised: contributions of the sign of `y` count `1 + gamma` times, also the bias's."""

    gamma: float = 0.25
    epsilon: float = 1e-6

    def shares(self, flow: Flow, layer: Affine, carried: Tensor, y: Tensor) -> tuple[Tensor, Tensor | None]:
        sign = torch.where(y < 0, -1.0, 1.0).to(y)
        favoured = (layer.magnitude() * sign + layer.unbiased(y)) / 2  # the sum of contributions of the sign of y
        bias = None if layer.bias is None else layer.on_outputs(layer.bias)
        if bias is not None:
            favoured = favoured + bias.where(bias * sign > 0, 0.0)
        s = divide(flow.incoming(carried, y), y + self.gamma * favoured, self.epsilon)
        if bias is not None:
            flow.lose(s * (bias + self.gamma * bias.where(bias * sign > 0, 0.0)))
        return s * (1 + self.gamma / 2), s * sign * (self.gamma / 2)


@dataclass(frozen=True)
class Box(Shares):
    """`z^B` for pixels between the least and the largest value `l`, `u` of their image; biases ignored.

    `R_i = sum_j (x_i w_ij - l w_ij^+ - u w_ij^-) R_j / sum`, which is `(x - (l + u) / 2) W^T a + (u - l) / 2 |W|^T a`.
    """

    epsilon: float = 1e-6

    def factors(self, flow: Flow, x: Tensor) -> tuple[Tensor, Tensor]:
        rows = x.reshape(flow.size, -1)
        low, high = flow.spread(rows.amin(1), x), flow.spread(rows.amax(1), x)
        return x - (low + high) / 2, ((high - low) / 2).expand_as(x)

    def shares(self, flow: Flow, layer: Affine, carried: Tensor, y: Tensor) -> tuple[Tensor, Tensor | None]:
        one, other = self.factors(flow, layer.x)
        total = layer.forward(one, layer.weight) + layer.forward(other, layer.weight.abs())
        a = divide(carried, total, self.epsilon)
        return a, a


@dataclass(frozen=True)
class Separate(Shares):
    """As in the code published with Transformer attribution: both positive products over sums of their own.

    Relevance is not conserved: a layer hands down up to twice what it was given.
    """

    epsilon: float = 1e-9

    def hand_down(self, flow: Flow, layer: Affine, carried: Tensor, y: Tensor) -> Tensor:
        total = torch.zeros_like(layer.x)
        for x, weight in (
            (layer.x.clamp_min(0), layer.weight.clamp_min(0)),
            (layer.x.clamp_max(0), layer.weight.clamp_max(0)),
        ):
            s = divide(carried, layer.forward(x, weight), self.epsilon)
            total += x * layer.transposed(s, weight)
        return total


def affine(shares: Shares) -> Callable[..., Any]:
    """Rule of `"linear"` and `"convolution"`; the first layer of a network has the composite's rule of the entrance."""

    def rule(flow: Flow, operation: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Any:
        layer = read_layer(operation, *args, **kwargs)
        if layer is None or layer.weight.requires_grad:
            return NotImplemented
        entrance = None if flow.entered else flow.composite.entrance
        flow.entered = True
        y = _ruled(flow, layer, entrance or shares, lambda: operation(*args, **kwargs))
        flow.folding = (y, layer, entrance or shares)
        return y

    return rule


def folded_norm(alone: Callable[..., Any]) -> Callable[..., Any]:
    """Rule of `"batch_norm"`: folded into the layer before it; `alone` is the rule of one that follows no layer."""

    def rule(flow: Flow, operation: Callable[..., Tensor], x: Tensor, *args: Any, **kwargs: Any) -> Any:
        settings = norm_settings(x, *args, **kwargs)
        if settings is None:
            return NotImplemented
        if flow.folding is None or flow.folding[0] is not x:
            return alone(flow, operation, x, *args, **kwargs)
        _, layer, shares = flow.folding
        return _ruled(flow, layer.folded(*settings), shares, lambda: operation(x, *args, **kwargs))

    return rule


def _ruled(flow: Flow, layer: Affine, shares: Shares, compute: Callable[[], Tensor]) -> Tensor:
    return node(flow, compute, lambda carried, y: [shares.hand_down(flow, layer, carried, y)], layer.x)
