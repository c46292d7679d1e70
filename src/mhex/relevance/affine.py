"""Rules of linear layers and convolutions, a batch norm after them folded in.

With `z_ij = x_i w_ij`, a rule says what `R_i` is. Contributions of one sign are taken by themselves: as a difference of
others they would leave rounding where there are none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mhex.capture.operations import Mark, Origin, is_from, mark
from mhex.relevance.flow import Flow, Rule, Shares
from mhex.relevance.layers import Affine, norm_settings, read_layer
from mhex.relevance.node import divide

_LOOK = 64  # rows that are looked at first


@dataclass(frozen=True)
class Epsilon(Shares):
    """LRP-epsilon: `R_i = sum_j z_ij R_j / stab(y_j)`; the bias absorbs its share."""

    epsilon: float = 1e-6

    def hand_down(self, flow: Flow, layer: Affine, carried: Tensor, y: Tensor) -> Tensor:
        exact = self.epsilon == 0 and not flow.relevance  # then the gradient is the rule
        s = carried if exact else divide(flow.incoming(carried, y), y, self.epsilon)
        if layer.bias is not None:
            flow.lose(layer.absorbed(s, layer.bias))
        gradient = layer.transposed(s, layer.weight)
        return gradient.mul_(layer.x) if flow.relevance else gradient


@dataclass(frozen=True)
class AlphaBeta(Shares):
    """`alpha` of the positive and `1 - alpha` of the negative contributions, each over its own sum; biases ignored."""

    alpha: float = 1.0
    epsilon: float = 1e-6

    def hand_down(self, flow: Flow, layer: Affine, carried: Tensor, y: Tensor) -> Tensor:
        relevance = flow.incoming(carried, y)
        # Of one sign alone, what it hands down has that sign exactly.
        sums = layer.both_sums(y) if layer.both_signs and self.alpha != 1 else None
        if sums is not None:
            return self._by_sizes(flow, layer, relevance, sums)
        parts = []
        for share, positive in ((self.alpha, True), (1 - self.alpha, False)):
            if share:
                s = divide(relevance, layer.one_sign(positive), self.epsilon).mul_(share)
                parts.append(layer.one_sign_back(s, positive, flow.relevance))
        return parts[0] if len(parts) == 1 else parts[0].add_(parts[1])

    def _by_sizes(self, flow: Flow, layer: Affine, relevance: Tensor, sums: tuple[Tensor, Tensor]) -> Tensor:
        """The same with fewer products: `R = (x W^T (s^+ + s^-) + |x| |W|^T (s^+ - s^-)) / 2`.

        Where both sums are far from 0, so that `s` is no number of another size than the rest.
        """
        up = divide(relevance, sums[0], self.epsilon).mul_(self.alpha / 2)
        down = divide(relevance, sums[1], self.epsilon).mul_((1 - self.alpha) / 2)
        plain, sized = layer.transposed(up + down, layer.weight), layer.transposed(up - down, layer.weight.abs())
        x = layer.x
        return plain.mul_(x).addcmul_(x.abs(), sized) if flow.relevance else plain.addcmul_(x.sign(), sized)


@dataclass(frozen=True)
class Gamma(Shares):
    """LRP-gamma, generalised: contributions of the sign of `y` count `1 + gamma` times, also the bias's.

    The sum of what counts is `sgn(y) ((1 + gamma / 2) |y| + gamma / 2 sum_i |z_ij|)`, bias included in both.
    """

    gamma: float = 0.25
    epsilon: float = 1e-6

    def hand_down(self, flow: Flow, layer: Affine, carried: Tensor, y: Tensor) -> Tensor:
        half, x = self.gamma / 2, layer.x
        total = layer.magnitude(half, self.epsilon).add_(y.abs(), alpha=1 + half)
        s = divide(flow.incoming(carried, y), total, 0.0) if self.epsilon == 0 else flow.incoming(carried, y).div(total)
        signed = torch.copysign(y.new_ones(()), y).mul_(s)
        if layer.bias is not None:
            flow.lose(layer.absorbed(signed, layer.bias * (1 + half)) + layer.absorbed(s, layer.bias.abs() * half))
        # Factors are on weights, which are fewer than activations.
        plain = layer.transposed(signed, layer.weight * (1 + half))
        sized = layer.transposed(s, layer.weight.abs().mul_(half))
        return plain.mul_(x).addcmul_(x.abs(), sized) if flow.relevance else plain.addcmul_(x.sign(), sized)


@dataclass(frozen=True)
class Box(Shares):
    """`z^B` for pixels between the least and the largest value `l`, `u` of their image; biases ignored.

    `R_i = sum_j (x_i w_ij - l w_ij^+ - u w_ij^-) R_j / sum`, which is `(x - (l + u) / 2) W^T a + (u - l) / 2 |W|^T a`.
    """

    epsilon: float = 1e-6
    all_tokens = True

    def hand_down(self, flow: Flow, layer: Affine, carried: Tensor, y: Tensor) -> Tensor:
        x, rows = layer.x, layer.x.reshape(flow.size, -1)
        low, high = flow.spread(rows.amin(1), x), flow.spread(rows.amax(1), x)
        middle, reach = x - (low + high) / 2, ((high - low) / 2).expand_as(x)
        total = layer.forward(middle, layer.weight) + layer.forward(reach, layer.weight.abs())
        a = divide(carried, total, self.epsilon)
        return middle * layer.transposed(a, layer.weight) + reach * layer.transposed(a, layer.weight.abs())


@dataclass(frozen=True)
class Separate(Shares):
    """The rule of the code published with Transformer attribution: both positive products over sums of their own.

    Relevance is not conserved: a layer hands down up to twice what it was given.
    """

    epsilon: float = 1e-9

    def hand_down(self, flow: Flow, layer: Affine, carried: Tensor, y: Tensor) -> Tensor:
        total = torch.zeros_like(layer.x)
        for one_sign in (torch.clamp_min, torch.clamp_max):
            x, weight = one_sign(layer.x, 0), one_sign(layer.weight, 0)
            s = divide(carried, layer.forward(x, weight), self.epsilon)
            total += x * layer.transposed(s, weight)
        return total


def affine(shares: Shares, projection: Shares | None = None) -> Rule:
    """Rule of `"linear"` and `"convolution"`; the first layer of a network has the composite's rule of the entrance.

    `projection` is the rule of layers that project into attention or out of it; None for that of the others.
    """

    def rule(flow: Flow, operation: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Any:
        layer = read_layer(operation, *args, **kwargs)
        if layer is None or layer.weight.requires_grad:
            return NotImplemented
        usual = shares if flow.entered or flow.composite.entrance is None else flow.composite.entrance
        flow.entered = True
        output, after_attention = Mark(), is_from(layer.x, "attention")

        def choose() -> Shares:  # on the way back, when it is known where the output went
            return projection if projection is not None and (after_attention or output.projects) else usual

        def fold(x: Tensor, settings: tuple[Tensor, Tensor], compute: Callable[[], Tensor]) -> Any:
            # Of tokens, a linear layer has its channels on the last axis, and the norm those on the second.
            if layer.geometry is None and x.dim() != 2:
                return NotImplemented
            return _ruled(flow, layer.folded(*settings), choose, compute)

        y = _ruled(flow, layer, choose, lambda: operation(*args, **kwargs))
        mark(y, Origin(frozenset((output,))))
        flow.folding = (y, fold)
        return y

    return rule


def folded_norm(alone: Rule) -> Rule:
    """Rule of `"batch_norm"`: folded into the layer before it; `alone` is the rule of one that follows no layer."""

    def rule(flow: Flow, operation: Callable[..., Tensor], x: Tensor, *args: Any, **kwargs: Any) -> Any:
        settings = norm_settings(x, *args, **kwargs)
        if settings is None:
            return NotImplemented
        if flow.folding is not None and flow.folding[0] is x:
            folded = flow.folding[1](x, settings, lambda: operation(x, *args, **kwargs))
            if folded is not NotImplemented:
                return folded
        return alone(flow, operation, x, *args, **kwargs)

    return rule


def _ruled(flow: Flow, layer: Affine, choose: Callable[[], Shares], compute: Callable[[], Tensor]) -> Tensor:
    def back(carried: Tensor, y: Tensor) -> list[Tensor]:
        shares = choose()
        part, tokens = layer, None if shares.all_tokens or layer.geometry is not None else flow.reached(carried)
        if tokens is not None:
            part, carried, y = replace(layer, x=layer.x[:, tokens]), carried[:, tokens], y[:, tokens]
        if layer.geometry is None and not flow.relevance and layer.weight.shape[0] > layer.weight.shape[1]:
            outputs = _reached_outputs(carried)
            if outputs is not None:
                part, carried, y = part.narrowed(outputs), carried[..., outputs], y[..., outputs]
        handed = shares.hand_down(flow, part, carried, y)
        if tokens is None:
            return [handed]
        every = torch.zeros_like(layer.x)
        every[:, tokens] = handed
        return [every]

    return flow.node(compute, back, layer.x)


def _reached_outputs(carried: Tensor) -> slice | Tensor | None:
    """Outputs of a linear layer that the backward pass reaches, where they are few; None where all are better taken.

    It does not reach queries and keys of constant attention.
    """
    rows = carried.flatten(0, -2)
    if 2 * int(rows[:_LOOK].any(0).sum()) >= rows.shape[1]:  # a look at some of them saves the rest
        return None
    places = rows.any(0).nonzero()[:, 0]
    if 2 * len(places) >= rows.shape[1]:
        return None
    first, last = (int(places[0]), int(places[-1]) + 1) if len(places) else (0, 0)
    return slice(first, last) if last - first == len(places) else places
