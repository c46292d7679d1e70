"""Where a tensor of a traced forward comes from: its ancestors, its channels and its positions."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

from mhex.capture.layers import Channels, returned

ADDITIONS = {operator.add, operator.iadd, torch.add, "add", "add_"}
_REDUCTIONS = {"mean", "sum", "amax", "amin", "max", torch.mean, torch.sum, torch.amax, torch.max}
# Their result has the positions of their first argument: a query meets keys.
_QUERIES = {F.scaled_dot_product_attention, operator.matmul, torch.matmul, torch.bmm, "matmul", "bmm", "__matmul__"}


def module_of(unit: nn.Module, node: fx.Node) -> nn.Module | None:
    """The child that a node calls, or None."""
    return unit.get_submodule(str(node.target)) if node.op == "call_module" else None


def ancestors(node: fx.Node) -> set[fx.Node]:
    """The node and everything it is computed from."""
    found, waiting = {node}, [node]
    while waiting:
        for before in waiting.pop().all_input_nodes:
            if before not in found:
                found.add(before)
                waiting.append(before)
    return found


def channels_of(unit: nn.Module, node: fx.Node) -> list[Channels]:
    """Where the channels of a tensor may be, by the layers on the way to it; the nearest first."""
    return _channels(unit, node, {})


def _channels(unit: nn.Module, node: fx.Node, known: dict[fx.Node, list[Channels]]) -> list[Channels]:
    if node in known:  # a tensor may be read twice, and be lost on one of the ways
        return known[node]
    if _reads_size(node):
        return []
    module = module_of(unit, node)
    own = list(returned(module)) if module is not None else []
    order = list(node.graph.nodes)
    inputs = node.all_input_nodes[:1] if module is not None else node.all_input_nodes
    before = [
        moved
        for one in sorted(inputs, key=order.index, reverse=True)
        for channels in _channels(unit, one, known)
        if (moved := _moved(channels, node)) is not None
    ]
    if own and module is not None and not _decides_itself(module):
        before = []  # its last layer says it all
    # Channel attention multiplies its input by what its layers say: the input's layout is likelier than theirs.
    likely = [one for one in before if own and one.width == own[0].width]
    known[node] = list(dict.fromkeys([*likely, *own, *before]))
    return known[node]


def _decides_itself(module: nn.Module) -> bool:
    """True for a module with children and a forward of its own, which may do anything with them."""
    return bool(module._modules) and not isinstance(module, nn.Sequential)


def _moved(channels: Channels, node: fx.Node) -> Channels | None:
    """Where channels are after an operation; None if that cannot be told."""
    numbers = _numbers(node)
    if node.target in ("permute", torch.permute):
        return channels.permuted(numbers) if numbers else None
    if node.target in ("transpose", "swapaxes", torch.transpose, torch.swapaxes):
        return channels.transposed(*numbers) if len(numbers) == 2 else None
    if node.target in ("movedim", "moveaxis", torch.movedim, torch.moveaxis):
        return channels.moved(*numbers) if len(numbers) == 2 else None
    if node.target is operator.getitem:
        return channels.indexed(node.args[1])
    if node.target in ("unsqueeze", torch.unsqueeze):
        return channels.unsqueezed(numbers[0]) if len(numbers) == 1 else None
    if node.target is torch.einsum or (node.target in _REDUCTIONS and not node.kwargs.get("keepdim")):
        return None
    if node.target is getattr and node.args[1:] in (("mT",), ("T",)):
        return channels.transposed(-1, -2)
    if node.target in ("flatten", torch.flatten):
        start, end = (*numbers, *(0, -1)[len(numbers) :])
        return _flattened(channels, start, end)
    if node.target in ("view", "reshape", torch.reshape):
        given = node.args[1:]
        sizes = given[0] if len(given) == 1 and isinstance(given[0], tuple | list) else given
        return channels.reshaped(len(sizes) if len(sizes) > 1 else None, trailing_ones(sizes))
    if node.target in ("unflatten", torch.unflatten):
        more = node.args[2] if len(node.args) == 3 else None
        return channels.reshaped(channels.rank + len(more) - 1 if channels.rank and isinstance(more, tuple) else None)
    if node.target in ("view_as", "reshape_as"):
        return channels.reshaped(None)
    return channels


def trailing_ones(sizes: Any) -> int:
    """How many literal ones a list of sizes ends with."""
    count = 0
    for size in reversed(sizes):
        if size != 1 or isinstance(size, fx.Node):
            break
        count += 1
    return count


def _flattened(channels: Channels, start: int, end: int) -> Channels | None:
    """After `flatten(start, end)`; None if the channels are among what is flattened."""
    if channels.rank is None:
        return channels.reshaped(None) if end != -1 else None
    first, last = start % channels.rank, end % channels.rank
    axis = channels.axis % channels.rank
    if first <= axis <= last:
        return None
    return Channels(channels.width, axis if axis < first else axis - (last - first), channels.rank - (last - first))


def _numbers(node: fx.Node) -> tuple[int, ...]:
    """Axes that are given to a method or a function, after its tensor."""
    given: Any = node.args[1:]
    if len(given) == 1 and isinstance(given[0], tuple | list):
        given = given[0]
    values = (*given, *node.kwargs.values())
    return values if all(isinstance(value, int) for value in values) else ()


def positions(unit: nn.Module, node: fx.Node) -> set[fx.Node]:
    """Arguments of the forward whose positions (pixels, tokens) a tensor has.

    An operation of several tensors has those of all of them, an addition those that its operands have in common (or
    of the operand that is nearest to the input), attention those of its queries. A size that is read off a tensor
    carries none, and a single token that is taken out of it is a position of its own.
    """
    known: dict[fx.Node, set[fx.Node]] = {}
    for step in node.graph.nodes:  # in order of execution
        known[step] = _positions(unit, step, known)
        if step is node:
            break
    return known[node]


def _positions(unit: nn.Module, node: fx.Node, known: dict[fx.Node, set[fx.Node]]) -> set[fx.Node]:
    if node.op == "placeholder":
        return {node}
    if _reads_size(node):
        return set()
    if node.target is operator.getitem and _takes_one(node.args[1]):
        return {node}
    inputs = node.all_input_nodes
    if inputs and (node.target in _QUERIES or isinstance(module_of(unit, node), nn.MultiheadAttention)):
        return known[inputs[0]]
    parts = [part for before in inputs if (part := known[before])]
    if node.target in ADDITIONS and parts:
        return set.intersection(*parts) or known[min(inputs, key=lambda n: (not known[n], len(ancestors(n))))]
    return set().union(*parts)


def _reads_size(node: fx.Node) -> bool:
    """True where a tensor is asked for its size and the like, so that nothing of it flows on."""
    asked = node.args[1:] in (("shape",), ("device",), ("dtype",), ("ndim",))
    return node.target in ("size", "dim", len) or (node.target is getattr and asked)


def _takes_one(index: Any) -> bool:
    """True for an index that takes one position, such as `[:, 0]` or `[:, :1]`."""
    if not isinstance(index, tuple) or len(index) < 2:
        return False
    at = index[1]
    if isinstance(at, slice):
        return isinstance(at.stop, int) and at.stop - (at.start or 0) == 1
    return isinstance(at, int)
