"""Linear layers and convolutions: what they compute, a batch norm after them folded in, and their rules.

With `z_ij = x_i w_ij`, a rule says what `R_i` is. Contributions of one sign are taken by themselves: as a difference of
others they would leave rounding where there are none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from mhex.capture.operations import Mark, Origin, is_from, mark
from mhex.capture.precision import split_product
from mhex.relevance.arithmetic import Operation, divide
from mhex.relevance.flow import Flow, Rule, is_layer

_SMALL = 1e-3  # a sum of contributions of one sign is rounding if it is smaller beside the other
_LOOK = 64  # rows that are looked at first


@dataclass(frozen=True)
class Affine:
    """`y = W x + b`: a linear layer, or a convolution."""

    x: Tensor
    weight: Tensor  # like the bias, a copy where a batch norm is folded in
    bias: Tensor | None = None
    geometry: tuple[Any, ...] | None = None  # arguments of torch's convolution after the bias: stride, padding...
    splits: bool = False  # whether matrix products are those of `split_product`
    rounds: bool | None = field(default=None, init=False)  # whether `both_sums` has none; None if it was not asked

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """`W x`, plus a bias if one is given."""
        if self.splits:
            return split_product(x, weight, bias)
        if self.geometry is None:
            return F.linear(x, weight, bias)
        bias = None if bias is None else bias.to(x.dtype)  # autocast does not know this function
        return torch.convolution(x, weight.to(x.dtype), bias, *self.geometry)

    def transposed(self, s: Tensor, weight: Tensor) -> Tensor:
        """`W^T s`, of the shape of `x`."""
        if self.splits:
            return split_product(s, weight.mT)
        if self.geometry is None:
            return s @ weight
        if self._cuts_patches:
            return self._patches_back(s, weight)
        needed = [True, False, False]  # gradients of x, weight and bias
        x, weight = self.x.to(s.dtype), weight.to(s.dtype)
        back: Tensor = torch.ops.aten.convolution_backward(s, x, weight, None, *self.geometry, needed)[0]
        return back

    @property
    def _cuts_patches(self) -> bool:
        """Whether it is a convolution of patches side by side, as at the entrance of a Vision Transformer."""
        if self.geometry is None or self.weight.dim() != 4:
            return False
        stride, padding, dilation, _, _, groups = self.geometry
        rows, columns = self.weight.shape[2:]
        whole = rows * columns > 1 and self.x.shape[2] % rows == 0 and self.x.shape[3] % columns == 0
        return whole and groups == 1 and list(stride) == [rows, columns] and padding == [0, 0] and dilation == [1, 1]

    def _patches_back(self, s: Tensor, weight: Tensor) -> Tensor:
        """`W^T s` of such a convolution: a matrix product, whose rows are patches."""
        patches: Tensor = s.movedim(1, -1) @ weight.to(s.dtype).flatten(1)
        pixels = patches.view(*patches.shape[:3], *weight.shape[1:])
        return pixels.permute(0, 3, 1, 4, 2, 5).reshape(self.x.shape)

    def both_sums(self, y: Tensor) -> tuple[Tensor, Tensor] | None:
        """Sums of the positive and of the negative contributions to `y`, bias included; None where one is rounding."""
        sizes = self.forward(self.x.abs(), self.weight.abs())
        plain, scale = y, sizes
        if self.bias is not None:
            bias = self.bias if self.geometry is None else self.bias.reshape(-1, *[1] * len(self.geometry[0]))
            plain, scale = y - bias, sizes + bias.abs()
        up, down = (sizes + plain).mul_(0.5), (plain - sizes).mul_(0.5)
        if self.rounds is None:  # asked once in a pass, as a GPU has to answer
            object.__setattr__(self, "rounds", bool((torch.minimum(up, -down) < _SMALL * scale).any()))
        return None if self.rounds else (up, down)

    def one_sign(self, positive: bool) -> Tensor:
        """`sum_i z_ij` over the contributions of one sign, of the shape of `y`."""
        up, down = self._signs(positive)
        total = self.forward(self.x.clamp_min(0), up)
        return total.add_(self.forward(self.x.clamp_max(0), down)) if self.both_signs else total

    def one_sign_back(self, s: Tensor, positive: bool, times_x: bool = True) -> Tensor:
        """`sum_j z_ij s_j` over the contributions of one sign, of the shape of `x`; or `w_ij` in place of `z_ij`."""
        up, down = self._signs(positive)
        total = self.transposed(s, up).mul_(self.x.clamp_min(0) if times_x else self.x > 0)
        if not self.both_signs:
            return total
        return total.addcmul_(self.transposed(s, down), self.x.clamp_max(0) if times_x else (self.x < 0).to(s))

    def _signs(self, positive: bool) -> tuple[Tensor, Tensor]:
        """Weights that make contributions of one sign, of positive and of negative `x`."""
        pair = self.weight.clamp_min(0), self.weight.clamp_max(0)
        return pair if positive else pair[::-1]

    @cached_property
    def both_signs(self) -> bool:
        """False if a convolution follows a ReLU. Other layers are not looked at: a GPU would have to be waited for."""
        return self.geometry is None or self._cuts_patches or bool((self.x < 0).any())

    def absorbed(self, s: Tensor, bias: Tensor) -> Tensor:
        """`sum_j s_j b_j`, with one number for every sample and window or token."""
        return (s @ bias)[..., None] if self.geometry is None else s.flatten(2).sum(2) @ bias

    def folded(self, scale: Tensor, shift: Tensor) -> Affine:
        """`scale y + shift` as one layer."""
        bias = shift if self.bias is None else self.bias * scale + shift
        return replace(self, weight=self.weight * scale.reshape(-1, *[1] * (self.weight.dim() - 1)), bias=bias)


def norm_settings(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor] | None:
    """Factor and offset (C,) of a batch norm; None if it depends on the batch."""
    if training or running_mean is None or running_var is None:
        return None
    scale = (running_var + eps).rsqrt()
    scale = scale if weight is None else scale * weight
    shift = -running_mean * scale
    return scale.to(x.dtype), (shift if bias is None else shift + bias).to(x.dtype)


def read_layer(operation: Operation, *args: Any, **kwargs: Any) -> Affine | None:
    """The layer that a call computes; None if it has none of the known forms."""
    if is_layer(operation, args):
        return Affine(args[0], args[1].mT)
    if operation is F.linear:
        return Affine(*args, **kwargs)
    if operation is torch.addmm:
        return _addmm(*args, **kwargs)
    return _convolution(*args, **kwargs)


def _addmm(input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Affine | None:
    if beta != 1 or alpha != 1 or input.dim() != 1 or input.requires_grad:
        return None
    return Affine(mat1, mat2.mT, input)


def _convolution(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Affine | None:
    axes = weight.dim() - 2
    if input.dim() != weight.dim():
        return None  # without a batch axis
    steps, holes = _per_axis(stride, axes), _per_axis(dilation, axes)
    if padding == "valid":
        padding = 0
    elif padding == "same":
        reach = [hole * (size - 1) for hole, size in zip(holes, weight.shape[2:], strict=True)]
        if any(total % 2 for total in reach):
            return None  # padded on one side more than on the other
        padding = [total // 2 for total in reach]
    return Affine(input, weight, bias, (steps, _per_axis(padding, axes), holes, False, [0] * axes, groups))


def _per_axis(value: Any, axes: int) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return values * axes if len(values) == 1 else values


class Shares:
    """A rule of affine layers."""

    all_tokens: ClassVar[bool] = False  # True if it looks at all tokens of a sample to hand down the relevance of one

    def hand_down(self, flow: Flow, layer: Affine, carried: Tensor, y: Tensor) -> Tensor:
        """What the backward pass carries to `x`, given what it carries to `y`; what the bias takes is noted."""
        raise NotImplementedError


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
        """The same with fewer products: `R = (x W^T (s^+ + s^-) + |x| |W|^T (s^+ - s^-)) / 2`."""
        # Where both sums are far from 0, so that `s` is no number of another size than the rest.
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
        half, x, size = self.gamma / 2, layer.x, y.abs()
        bias = layer.weight.new_zeros(len(layer.weight)) if layer.bias is None else layer.bias
        offset = bias.abs().mul_(half).add_(self.epsilon)
        total = layer.forward(x.abs(), layer.weight.abs().mul_(half), offset).add_(size, alpha=1 + half)
        share = divide(carried, total, 0.0) if self.epsilon == 0 else carried / total
        if flow.relevance:
            s, signed = share, torch.copysign(y.new_ones(()), y).mul_(share)
        else:  # relevance is `carried y`
            s, signed = share * y, share.mul_(size)
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


def affine(shares: Shares, projection: Shares | None = None, entrance: Shares | None = None) -> Rule:
    """Rule of `"linear"` and `"convolution"`; around attention the `projection`, for the first layer the `entrance`."""

    def rule(flow: Flow, operation: Operation, *args: Any, **kwargs: Any) -> Any:
        layer = read_layer(operation, *args, **kwargs)
        if layer is None or layer.weight.requires_grad:
            return NotImplemented
        layer = replace(layer, splits=flow.splits and layer.geometry is None)
        usual = shares if flow.entered or entrance is None else entrance
        flow.entered = True
        output, after_attention = Mark(), is_from(layer.x, "attention")

        def choose() -> Shares:  # on the way back, when it is known where the output went
            return projection if projection is not None and (after_attention or output.projects) else usual

        y = _ruled(flow, layer, choose, lambda: flow.product(operation, args, kwargs))
        mark(y, Origin(frozenset((output,))))
        flow.folding = (y, layer, choose)
        return y

    return rule


def folded_norm(alone: Rule) -> Rule:
    """Rule of `"batch_norm"`: folded into the layer before it; `alone` is the rule of one that follows no layer."""

    def rule(flow: Flow, operation: Operation, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        settings = norm_settings(x, *args, **kwargs)
        if settings is None:
            return NotImplemented
        if flow.folding is not None and flow.folding[0] is x:
            _, layer, choose = flow.folding
            # Of tokens, a linear layer has its channels on the last axis, and the norm those on the second.
            if layer.geometry is not None or x.dim() == 2:
                return _ruled(flow, layer.folded(*settings), choose, lambda: operation(x, *args, **kwargs))
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
                bias = None if part.bias is None else part.bias[outputs]
                part = replace(part, weight=part.weight[outputs], bias=bias)
                carried, y = carried[..., outputs], y[..., outputs]
        handed = shares.hand_down(flow, part, carried, y)
        if tokens is None:
            return [handed]
        every = torch.zeros_like(layer.x)
        every[:, tokens] = handed.to(every.dtype)
        return [every]

    return flow.node(compute, back, layer.x)


def _reached_outputs(carried: Tensor) -> slice | Tensor | None:
    """Outputs of a linear layer that the backward pass reaches, where they are few; None where all are better taken."""
    # It does not reach queries and keys of constant attention.
    if not carried.is_cpu:  # waiting for the answer would take longer
        return None
    rows = carried.flatten(0, -2)
    if 2 * int(rows[:_LOOK].any(0).sum()) >= rows.shape[1]:  # a look at some of them saves the rest
        return None
    places = rows.any(0).nonzero()[:, 0]
    if 2 * len(places) >= rows.shape[1]:
        return None
    first, last = (int(places[0]), int(places[-1]) + 1) if len(places) else (0, 0)
    return slice(first, last) if last - first == len(places) else places
