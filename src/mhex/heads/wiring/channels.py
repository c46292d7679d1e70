"""What layers say of the tensors they return: how many channels, and on which axis."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from mhex.capture.anatomy import is_a


@dataclass(frozen=True)
class Channels:
    """Where the channels of a tensor are.

    Attributes:
        width: C.
        axis: From the front, or -1 for the last of a tensor of unknown rank.
        rank: Number of axes; None if a layer takes any.
    """

    width: int
    axis: int
    rank: int | None

    @property
    def last(self) -> bool:
        """True for (B, T, C), (B, H, W, C) and the like."""
        return self.axis == -1 or (self.rank is not None and self.axis == self.rank - 1)

    @property
    def usable(self) -> bool:
        """True for the layouts that heads know: (B, C, H, W), (B, H, W, C) and (B, T, C)."""
        return self.rank in (None, 3, 4) if self.last else (self.axis, self.rank) == (1, 4)

    def permuted(self, axes: tuple[int, ...]) -> Channels:
        """After `permute(*axes)`."""
        rank = len(axes)
        return replace(self, axis=[a % rank for a in axes].index(self.axis % rank), rank=rank)

    def transposed(self, one: int, other: int) -> Channels:
        """After `transpose(one, other)`; where the rank is not known, it is the least that has these axes."""
        rank = self.rank
        if rank is None and max(one, other) < 2 and min(one, other) >= 0:
            return self  # the first axes of a tensor whose channels are the last
        if rank is None:
            rank = max(3, one + 1, other + 1)
        swap = {one % rank: other % rank, other % rank: one % rank}
        return replace(self, axis=swap.get(self.axis % rank, self.axis % rank), rank=rank)

    def moved(self, source: int, goal: int) -> Channels:
        """After `movedim(source, goal)`; a tensor of unknown rank is taken for a map."""
        rank = self.rank or 4
        order = [axis for axis in range(rank) if axis != source % rank]
        order.insert(goal % rank, source % rank)
        return self.permuted(tuple(order))

    def indexed(self, index: Any) -> Channels | None:
        """After `tensor[index]`; None unless the index only takes slices and adds axes, such as `[:, :, None]`."""
        parts = index if isinstance(index, tuple) else (index,)
        if any(part is not None and not isinstance(part, slice) for part in parts):
            return None if any(part is None for part in parts) else self
        if all(part is not None for part in parts):
            return self
        rank = self.rank or sum(part is not None for part in parts)
        axis, axes = self.axis % rank, [place for place, part in enumerate(parts) if part is not None]
        added = len(parts) - len(axes)
        return replace(self, axis=axes[axis] if axis < len(axes) else axis + added, rank=rank + added)

    def unsqueezed(self, place: int) -> Channels | None:
        """After `unsqueeze(place)`; None where the rank is not known."""
        if self.rank is None:
            return None
        place %= self.rank + 1
        axis = self.axis % self.rank
        return replace(self, axis=axis + (place <= axis), rank=self.rank + 1)

    def reshaped(self, rank: int | None, ones: int = 0) -> Channels:
        """After a view with so many axes: channels that were first or last stay so, as the other axes fold.

        Args:
            rank: Number of axes; None if not known.
            ones: How many axes of size 1 were added at the end.
        """
        if not self.last:
            return replace(self, rank=rank)
        return replace(self, axis=-1 if rank is None else rank - 1 - min(ones, rank - 1), rank=rank)


def is_layer(module: nn.Module) -> bool:
    """True for what makes a branch more than a shortcut: convolutions, linear layers, attention."""
    return isinstance(module, nn.modules.conv._ConvNd | nn.Linear | nn.MultiheadAttention) or _is_gpt_linear(module)


def keeps_width(layer: nn.Module) -> bool:
    """True for a layer that returns as many channels as it takes."""
    if isinstance(layer, nn.modules.conv._ConvNd):
        return layer.in_channels == layer.out_channels
    if isinstance(layer, nn.Linear):
        return layer.in_features == layer.out_features
    return isinstance(layer, nn.MultiheadAttention) or (_is_gpt_linear(layer) and layer.nx == layer.nf)


def is_map_layer(module: nn.Module) -> bool:
    """True for convolutions."""
    return isinstance(module, nn.modules.conv._ConvNd)


def taken(module: nn.Module) -> int | None:
    """How many channels a layer takes, or the first layer of a sequence; None for others."""
    while isinstance(module, nn.Sequential) and len(module):
        module = module[0]
    if isinstance(module, nn.modules.conv._ConvNd):
        return module.in_channels
    if isinstance(module, nn.Linear):
        return module.in_features
    own = _of_layer(module)
    return None if own is None or _is_gpt_linear(module) else own.width


def returned(module: nn.Module) -> Iterator[Channels]:
    """Where the channels of what a module returns may be, likeliest first.

    The last layer of a module decides; an earlier one is the next guess, for modules such as channel attention that
    multiply their input by something of another shape.
    """
    own = _of_layer(module)
    if own is not None:
        yield own
        return
    turns: list[tuple[int, ...]] = []
    for child in reversed(list(module.children())):
        if is_a(child, "torchvision", "Permute"):
            turns.append(tuple(child.dims))  # type: ignore[arg-type]
            continue
        for channels in returned(child):
            for axes in reversed(turns):
                channels = channels.permuted(axes)
            yield channels


def _of_layer(layer: nn.Module) -> Channels | None:
    if isinstance(layer, nn.modules.conv._ConvNd):
        return Channels(layer.out_channels, 1, layer.weight.dim())
    if isinstance(layer, nn.BatchNorm2d | nn.InstanceNorm2d):  # those of other ranks also serve flattened tokens
        return Channels(layer.num_features, 1, 4)
    if isinstance(layer, nn.Linear):
        return Channels(layer.out_features, -1, None)
    if isinstance(layer, nn.MultiheadAttention):
        return Channels(layer.embed_dim, -1, 3)
    if _is_gpt_linear(layer):
        return Channels(int(layer.nf), -1, None)  # type: ignore[arg-type]
    if isinstance(layer, nn.LayerNorm) and len(layer.normalized_shape) == 1:
        # Norms of maps derive from it and turn them inside (torchvision, timm, Hugging Face).
        first = type(layer).__name__.endswith("2d") or getattr(layer, "data_format", "") == "channels_first"
        return Channels(layer.normalized_shape[0], 1, 4) if first else Channels(layer.normalized_shape[0], -1, None)
    return None


def _is_gpt_linear(module: nn.Module) -> bool:
    """True for the linear layer of GPT-2, which is called a convolution and stores its matrix the other way."""
    return is_a(module, "transformers", "Conv1D")
