"""Finding residual additions: where a shortcut and a residual branch meet inside an unmodified module.

An addition is residual if one operand reaches it past layers that the other runs through, and if everything that leaves
the fork goes through the addition. Which axis holds the channels follows from the layers of the branch, never from the
sizes of a tensor.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Any

from torch import fx, nn

from mhex.capture.layers import is_layer, is_map_layer, taken
from mhex.capture.lineage import ADDITIONS, ancestors, channels_of, module_of, positions


@dataclass(frozen=True)
class Meeting:
    """A residual addition of a traced forward.

    Attributes:
        addition: Name of the node.
        shortcut: Name of the node of the operand that is carried past the branch.
        branch: Name of the node of the other operand.
        channels: Width C of the sum.
        channels_last: True for (B, H, W, C) and (B, T, C), False for (B, C, H, W).
        branch_first: True for `branch + shortcut`, False for `shortcut + branch`.
        projection: True if the shortcut has layers of its own.
        strided: True if the shortcut shrinks the map.
        normed: True if the sum is read by a layer norm alone, as in post-norm Transformers.
    """

    addition: str
    shortcut: str
    branch: str
    channels: int
    channels_last: bool
    branch_first: bool
    projection: bool
    strided: bool
    normed: bool


@dataclass(frozen=True)
class Meetings:
    """What there is in a forward.

    Attributes:
        found: Residual additions, in order of execution.
        refused: Why others cannot carry a head, in words that follow the name of the unit.
    """

    found: list[Meeting] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


def meetings(unit: nn.Module, graph: fx.Graph) -> Meetings:
    """Residual additions of a module's own forward.

    Args:
        unit: The module.
        graph: From `trace_unit`.
    """
    result = Meetings()
    for node in graph.nodes:
        seen = _meeting(unit, node) if _is_addition(node) else None
        if node.target == "add_" and not node.users:
            seen = "adds in place where nothing reads the result (o.add_(x) by itself); write o = o + x"
        if isinstance(seen, str):
            result.refused.append(seen)
        elif seen is not None:
            result.found.append(seen)
    return result


def _is_addition(node: fx.Node) -> bool:
    called = node.op in ("call_function", "call_method") and node.target in ADDITIONS
    return called and len(node.args) == 2 and not node.kwargs and all(isinstance(a, fx.Node) for a in node.args)


def _meeting(unit: nn.Module, addition: fx.Node) -> Meeting | str | None:
    """The residual addition at a node, why it cannot carry a head, or None if it is no such addition."""
    a, b = _operands(addition)
    above_a, above_b = ancestors(a), ancestors(b)
    own_a, own_b = above_a - above_b, above_b - above_a
    size_a, size_b = (_size(unit, own) for own in (own_a, own_b))
    fork = a if a in above_b else b if b in above_a else _fork(above_a & above_b)
    stream = next(node for node in addition.graph.nodes if node.op == "placeholder")
    if max(size_a, size_b)[0] == 0 or fork is None or stream not in ancestors(fork) or not _closes(fork, addition):
        return None
    if fork not in (a, b) and any(fork in _terms(operand, addition) for operand in (a, b)):
        return "adds a shortcut and two branches in a row, so no branch is the one; write x + (a(x) + b(x))"
    if size_a == size_b:  # neither has more to it than the other: no shortcut
        return None
    shortcut, branch, own = (a, b, own_a) if size_a < size_b else (b, a, own_b)
    if not _on_grid(positions(unit, shortcut)):
        return "adds tensors whose positions are not those of its input (attention pooling, class attention)"
    if addition.target in (operator.iadd, "add_") and a.op == "placeholder":
        return "writes the sum into its own input (x += ...), which its caller may still read; write x = x + ..."
    guesses = channels_of(unit, branch)
    usable = [guess for guess in guesses if guess.usable]
    width = _width(unit, shortcut, fork)
    channels = next((guess for guess in usable if guess.width == width), next(iter(usable), None))
    if channels is None:
        return (
            "has its channels on another axis than maps (B, C, H, W) or tokens (B, T, C) do"
            if guesses
            else "moves axes in a way that is not followed (einsum and the like), so its channels are not found"
        )
    if any(isinstance(m, nn.MultiheadAttention) and not m.batch_first for m in unit.modules()):
        return "attends with batch_first=False, so its first axis is not that of the samples"
    passed = [module for node in own if (module := module_of(unit, node)) is not None]
    inner = [layer for module in passed for layer in module.modules()]
    return Meeting(
        addition.name,
        shortcut.name,
        branch.name,
        channels.width,
        channels.last,
        branch_first=branch is a,
        projection=any(is_layer(layer) for layer in inner),
        strided=any(_stride(layer) > 1 for layer in inner),
        normed=all(isinstance(module_of(unit, user), nn.LayerNorm) for user in addition.users),
    )


def _width(unit: nn.Module, shortcut: fx.Node, fork: fx.Node) -> int | None:
    """C, as the shortcut's own layers or a layer that reads the fork say; None if there is none of either."""
    if shortcut is not fork:
        return next((guess.width for guess in channels_of(unit, shortcut) if guess.usable), None)
    readers = [module_of(unit, user) for user in fork.users]
    return next((width for reader in readers if reader is not None and (width := taken(reader))), None)


def _on_grid(sources: set[fx.Node]) -> bool:
    """False for positions that a forward makes up itself, takes out of its input, or gets as a class token."""
    return bool(sources) and all(node.op == "placeholder" and "cls" not in node.name for node in sources)


def _operands(addition: fx.Node) -> tuple[fx.Node, fx.Node]:
    a, b = (arg for arg in addition.args if isinstance(arg, fx.Node))
    return a, b


def _terms(node: fx.Node, user: fx.Node) -> set[fx.Node]:
    """What a sum that only `user` reads is the sum of; nothing for other nodes."""
    if not _is_addition(node) or set(node.users) != {user}:
        return set()
    operands = _operands(node)
    return {*operands, *(term for operand in operands for term in _terms(operand, node))}


def _fork(common: set[fx.Node]) -> fx.Node | None:
    """The last node that both branches are computed from."""
    carriers = [node for node in common if node.op != "get_attr"]
    return max(carriers, key=lambda node: list(node.graph.nodes).index(node)) if carriers else None


def _closes(fork: fx.Node, addition: fx.Node) -> bool:
    """True if every way from the fork to the output leads through the addition."""
    seen, waiting = {addition}, [fork]
    while waiting:
        for user in waiting.pop().users:
            if user.op == "output":
                return False
            if user not in seen:
                seen.add(user)
                waiting.append(user)
    return True


def _size(unit: nn.Module, nodes: set[fx.Node]) -> tuple[int, int]:
    """Layers and parameters of the modules that these nodes call."""
    modules = [module for node in nodes if (module := module_of(unit, node)) is not None]
    layers = [layer for module in modules for layer in module.modules() if is_layer(layer)]
    return len(layers), sum(p.numel() for module in modules for p in module.parameters())


def _stride(layer: Any) -> int:
    """Of a layer that may shrink a map; 1 for all others."""
    if not is_map_layer(layer) and not isinstance(layer, nn.MaxPool2d | nn.AvgPool2d):
        return 1
    return int(layer.stride if isinstance(layer.stride, int) else max(layer.stride))
