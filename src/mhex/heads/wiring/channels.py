"""Which axis of a tensor holds the channels, and whose positions it has.

`mhex.attach(model, num_classes)` gets no inputs, so both are read off the layers and operations of a traced forward.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from mhex.capture.anatomy import is_a
from mhex.heads.wiring.graph import ADDITIONS, ancestors, module_of

_REDUCTIONS = {"mean", "sum", "amax", "amin", "max", torch.mean, torch.sum, torch.amax, torch.max}
# Their result has the positions of their first argument: a query meets keys.
_QUERIES = {F.scaled_dot_product_attention, operator.matmul, torch.matmul, torch.bmm, "matmul", "bmm", "__matmul__"}
CONVOLUTIONS = nn.modules.conv._ConvNd
# Operations that move axes, as methods of a tensor and as functions of torch, and how many axes they name.
_MOVES = {
    **{"permute": range(1, 9), "flatten": range(3), "unsqueeze": range(1, 2)},
    **dict.fromkeys(("transpose", "swapaxes", "movedim", "moveaxis"), range(2, 3)),
}
_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19)


@dataclass(frozen=True)
class Channels:
    """Where the channels of a tensor are."""

    width: int  # C
    axis: int  # from the front, or -1 for the last of a tensor of unknown rank
    rank: int | None  # number of axes; None if a layer takes any

    @property
    def last(self) -> bool:
        """True for (B, T, C), (B, H, W, C) and the like."""
        return self.axis == -1 or (self.rank is not None and self.axis == self.rank - 1)

    @property
    def usable(self) -> bool:
        """True for the layouts that heads know: (B, C, H, W), (B, H, W, C) and (B, T, C)."""
        return self.rank in (None, 3, 4) if self.last else (self.axis, self.rank) == (1, 4)

    def after(self, move: Callable[[Tensor], Tensor], rank: int) -> Channels | None:
        """Where they are after axes were moved, added or joined, as an empty tensor shows; None if they were joined.

        A tensor of unknown rank is taken to have `rank` axes.
        """
        sizes = _PRIMES[: self.rank or rank]  # no two axes are alike, and no joined axes are like one of them
        size, shape = sizes[self.axis % len(sizes)], move(torch.empty(sizes, device="meta")).shape
        return Channels(self.width, shape.index(size), len(shape)) if size in shape else None

    def permuted(self, axes: tuple[int, ...]) -> Channels:
        """After `permute(*axes)`."""
        rank = len(axes)
        return replace(self, axis=[a % rank for a in axes].index(self.axis % rank), rank=rank)

    def reshaped(self, rank: int | None, units: int = 0) -> Channels:
        """After a view with `rank` axes, the last `units` of size 1: channels that were first or last stay so."""
        if not self.last:
            return replace(self, rank=rank)
        return replace(self, axis=-1 if rank is None else rank - 1 - min(units, rank - 1), rank=rank)


def is_layer(module: nn.Module) -> bool:
    """True for what makes a branch more than a shortcut: convolutions, linear layers, attention."""
    return isinstance(module, CONVOLUTIONS | nn.Linear | nn.MultiheadAttention) or _is_gpt_linear(module)


def keeps_width(layer: nn.Module) -> bool:
    """True for a layer that returns as many channels as it takes."""
    widths = _of_layer(layer)
    return is_layer(layer) and widths is not None and widths[0] == widths[1].width


def input_width(module: nn.Module) -> int | None:
    """How many channels a layer takes, or the first layer of a sequence; None for others."""
    while isinstance(module, nn.Sequential) and len(module):
        module = module[0]
    return None if (widths := _of_layer(module)) is None else widths[0]


def returned(module: nn.Module) -> Iterator[Channels]:
    """Where the channels of what a module returns may be, likeliest first, by its last layer, then by earlier ones."""
    if (widths := _of_layer(module)) is not None:
        yield widths[1]
        return
    # An earlier layer is a guess for modules such as channel attention: they multiply their input by another shape.
    turns: list[tuple[int, ...]] = []
    for child in reversed(list(module.children())):
        if is_a(child, "torchvision", "Permute"):
            turns.append(tuple(child.dims))  # type: ignore[arg-type]
            continue
        for channels in returned(child):
            for axes in reversed(turns):
                channels = channels.permuted(axes)
            yield channels


def _of_layer(layer: nn.Module) -> tuple[int, Channels] | None:
    """How many channels a layer takes, and where those are that it returns; None for other modules."""
    if isinstance(layer, CONVOLUTIONS):
        return layer.in_channels, Channels(layer.out_channels, 1, layer.weight.dim())
    if isinstance(layer, nn.Linear):
        return layer.in_features, Channels(layer.out_features, -1, None)
    if _is_gpt_linear(layer):
        return layer.nx, Channels(layer.nf, -1, None)  # type: ignore[arg-type, return-value]
    if isinstance(layer, nn.MultiheadAttention):
        return layer.embed_dim, Channels(layer.embed_dim, -1, 3)
    if isinstance(layer, nn.BatchNorm2d | nn.InstanceNorm2d):  # those of other ranks also serve flattened tokens
        return layer.num_features, Channels(layer.num_features, 1, 4)
    if isinstance(layer, nn.LayerNorm) and len(layer.normalized_shape) == 1:
        (width,) = layer.normalized_shape
        # Norms of maps derive from it and turn them inside (torchvision, timm, Hugging Face).
        first = type(layer).__name__.endswith("2d") or getattr(layer, "data_format", "") == "channels_first"
        return width, Channels(width, 1, 4) if first else Channels(width, -1, None)
    return None


def _is_gpt_linear(module: nn.Module) -> bool:
    """True for the linear layer of GPT-2, which is called a convolution and stores its matrix the other way."""
    return is_a(module, "transformers", "Conv1D")


def channels_of(unit: nn.Module, node: fx.Node, cache: dict[fx.Node, list[Channels]] | None = None) -> list[Channels]:
    """Where the channels of a tensor may be, by the layers on the way to it; the nearest first."""
    cache = {} if cache is None else cache
    if node in cache:  # a tensor may be read twice, and be lost on one of the ways
        return cache[node]
    if _reads_size(node):
        return []
    module = module_of(unit, node)
    nearest = list(returned(module)) if module is not None else []
    order = list(node.graph.nodes)
    inputs = node.all_input_nodes[:1] if module is not None else node.all_input_nodes
    before = [
        moved
        for source in sorted(inputs, key=order.index, reverse=True)
        for channels in channels_of(unit, source, cache)
        if (moved := moved_by(node, channels)) is not None
    ]
    # A module with children and a forward of its own may do anything with them; of others the last layer says it all.
    if nearest and module is not None and (not module._modules or isinstance(module, nn.Sequential)):
        before = []
    # Channel attention multiplies its input by what its layers say: the input's layout is likelier than theirs.
    likely = [channels for channels in before if nearest and channels.width == nearest[0].width]
    cache[node] = list(dict.fromkeys([*likely, *nearest, *before]))
    return cache[node]


def moved_by(node: fx.Node, channels: Channels) -> Channels | None:
    """Where the channels of a tensor are after an operation on it; None if that cannot be told."""
    arguments: Any = node.args[1:]
    sizes = arguments[0] if len(arguments) == 1 and isinstance(arguments[0], tuple | list) else arguments
    name = next((name for name in _MOVES if node.target in (name, getattr(torch, name))), None)
    if name is not None:
        axes = (*sizes, *node.kwargs.values())
        if len(axes) not in _MOVES[name] or not all(isinstance(axis, int) for axis in axes):
            return None
        if name == "permute":
            return channels.permuted(axes)
        if channels.rank is None and name in ("flatten", "unsqueeze"):
            return channels if len(axes) == 2 and axes[1] != -1 else None
        if channels.rank is None and name in ("transpose", "swapaxes") and set(axes) <= {0, 1}:
            return channels  # the first axes of a tensor whose channels are the last
        # Of unknown rank, tokens are transposed and maps have their axes moved, as a rule.
        least = max(4 if name in ("movedim", "moveaxis") else 3, *(axis + 1 for axis in axes), 0)
        return channels.after(lambda tensor: getattr(tensor, name)(*axes), least)
    if node.target is operator.getitem:
        index = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
        if all(part is not None for part in index):
            return channels
        if any(part is not None and not isinstance(part, slice) for part in index):
            return None
        slices = tuple(None if part is None else slice(None) for part in index)
        return channels.after(lambda tensor: tensor[slices], len(index) - index.count(None))
    if node.target is torch.einsum or (node.target in _REDUCTIONS and not node.kwargs.get("keepdim")):
        return None
    if node.target is getattr and arguments in (("mT",), ("T",)):
        return channels.after(lambda tensor: tensor.mT, 3)
    if node.target in ("view", "reshape", torch.reshape):
        larger = (isinstance(size, fx.Node) or size != 1 for size in reversed(sizes))
        units = next((number for number, is_larger in enumerate(larger) if is_larger), len(sizes))
        return channels.reshaped(len(sizes) if len(sizes) > 1 else None, units)
    if node.target in ("unflatten", torch.unflatten):
        parts = arguments[1] if len(arguments) == 2 else None
        return channels.reshaped(channels.rank + len(parts) - 1 if channels.rank and isinstance(parts, tuple) else None)
    return channels.reshaped(None) if node.target in ("view_as", "reshape_as") else channels


def positions(unit: nn.Module, node: fx.Node) -> set[fx.Node]:
    """Arguments of the forward whose positions (pixels, tokens) a tensor has.

    An operation of several tensors has those of all of them, an addition those that its operands have in common (or
    of the operand that is nearest to the input), attention those of its queries. A size that is read off a tensor
    carries none, and a single token that is taken out of it is a position of its own.
    """
    sources: dict[fx.Node, set[fx.Node]] = {}
    for step in node.graph.nodes:  # in order of execution
        sources[step] = _positions(unit, step, sources)
        if step is node:
            break
    return sources[node]


def _positions(unit: nn.Module, node: fx.Node, sources: dict[fx.Node, set[fx.Node]]) -> set[fx.Node]:
    if node.op == "placeholder" or (node.target is operator.getitem and _takes_one(node.args[1])):
        return {node}
    if _reads_size(node):
        return set()
    inputs = node.all_input_nodes
    if inputs and (node.target in _QUERIES or isinstance(module_of(unit, node), nn.MultiheadAttention)):
        return sources[inputs[0]]
    parts = [part for before in inputs if (part := sources[before])]
    if node.target in ADDITIONS and parts:
        return set.intersection(*parts) or sources[min(inputs, key=lambda n: (not sources[n], len(ancestors(n))))]
    return set().union(*parts)


def _reads_size(node: fx.Node) -> bool:
    """True where a tensor is asked for its size and the like, so that nothing of it flows on."""
    is_fact = node.args[1:] in (("shape",), ("device",), ("dtype",), ("ndim",))
    return node.target in ("size", "dim", len) or (node.target is getattr and is_fact)


def _takes_one(index: Any) -> bool:
    """True for an index that takes one position, such as `[:, 0]` or `[:, :1]`."""
    if not isinstance(index, tuple) or len(index) < 2:
        return False
    at = index[1]
    if isinstance(at, slice):
        return isinstance(at.stop, int) and at.stop - (at.start or 0) == 1
    return isinstance(at, int)
