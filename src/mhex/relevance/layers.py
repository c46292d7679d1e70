"""What affine layers compute: linear layers and convolutions, and batch norms to be folded into them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_SMALL = 1e-3


@dataclass(frozen=True)
class Affine:
    """`y = W x + b`: a linear layer, or a convolution.

    Attributes:
        x: What enters.
        weight, bias: The tensors of the layer; copies where a batch norm is folded in.
        geometry: Stride, padding, dilation and groups of a convolution; None for a linear layer.
    """

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    geometry: tuple[Any, ...] | None = None
    rounds: bool | None = field(default=None, init=False)  # whether `both_sums` has none; None if it was not asked

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """`W x`, plus a bias if one is given."""
        if self.geometry is None:
            return F.linear(x, weight, bias)
        stride, padding, dilation, groups = self.geometry
        return torch.convolution(x, weight, bias, stride, padding, dilation, False, [0] * len(stride), groups)

    def transposed(self, s: Tensor, weight: Tensor) -> Tensor:
        """`W^T s`, of the shape of `x`."""
        if self.geometry is None:
            return s @ weight
        stride, padding, dilation, groups = self.geometry
        back: Tensor = torch.ops.aten.convolution_backward(
            *(s, self.x, weight, None, stride, padding, dilation, False, [0] * len(stride), groups),
            [True, False, False],
        )[0]
        return back

    def magnitude(self, factor: float, offset: float) -> Tensor:
        """`factor (sum_i |z_ij| + |b_j|) + offset`, of the shape of `y`; a new tensor."""
        bias = self.weight.new_zeros(len(self.weight)) if self.bias is None else self.bias
        return self.forward(self.x.abs(), self.weight.abs().mul_(factor), bias.abs().mul_(factor).add_(offset))

    def both_sums(self, y: Tensor) -> tuple[Tensor, Tensor] | None:
        """Sums of the positive and of the negative contributions, from what the layer computed, bias included.

        None where one of them is so small beside the other that it would be rounding.
        """
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
        """False if a convolution follows a ReLU. Linear layers are not looked at: a GPU would have to be waited for."""
        return self.geometry is None or bool((self.x < 0).any())

    def absorbed(self, s: Tensor, bias: Tensor) -> Tensor:
        """`sum_j s_j b_j`, with one number for every sample and window or token."""
        return (s @ bias)[..., None] if self.geometry is None else s.flatten(2).sum(2) @ bias

    def narrowed(self, outputs: slice | Tensor) -> Affine:
        """A linear layer with these of its outputs alone."""
        return replace(self, weight=self.weight[outputs], bias=None if self.bias is None else self.bias[outputs])

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


def read_layer(operation: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Affine | None:
    """The layer that a call computes; None if it has none of the known forms."""
    if is_layer(operation, args):
        return Affine(args[0], args[1].mT, None)
    if operation is torch.addmm:
        return _addmm(*args, **kwargs)
    return _linear(*args, **kwargs) if operation is F.linear else _convolution(*args, **kwargs)


def is_layer(operation: Callable[..., Tensor], args: tuple[Any, ...]) -> bool:
    """True of a matrix product that is a linear layer by another name: rows of the graph, times a constant matrix."""
    if getattr(operation, "__name__", "") not in ("matmul", "__matmul__", "mm") or len(args) != 2:
        return False
    rows, matrix = args
    return bool(rows.requires_grad and rows.dim() > 1 and not matrix.requires_grad and matrix.dim() == 2)


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Affine:
    return Affine(input, weight, bias)


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
    return Affine(input, weight, bias, (steps, _per_axis(padding, axes), holes, groups))


def _per_axis(value: Any, axes: int) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return values * axes if len(values) == 1 else values
