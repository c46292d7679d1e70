"""Finding residual additions: where a shortcut and a residual branch meet inside an unmodified module.

A module's own forward is traced symbolically (torch.fx) with its children as black boxes, so nothing is run and no
input is needed. An addition is residual if one operand reaches it past layers that the other runs through, and if
everything that leaves the fork goes through the addition.
"""

from __future__ import annotations

import dis
import inspect
import itertools
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch import fx, nn

_ADDITIONS = {operator.add, operator.iadd, torch.add}
_ADDING_METHODS = {"add", "add_"}
_LAYERS = (nn.modules.conv._ConvNd, nn.Linear, nn.MultiheadAttention)
_STRIDED = (nn.modules.conv._ConvNd, nn.MaxPool2d, nn.AvgPool2d)
# What tracing code that was not written for it may raise; anything else is a mistake of ours.
UNTRACEABLE = (
    fx.proxy.TraceError,
    TypeError,
    ValueError,
    AttributeError,
    KeyError,
    IndexError,
    RuntimeError,
    NotImplementedError,
)
EXTRA = "mhex_extra"  # stands for `**kwargs` while tracing


@dataclass(frozen=True)
class Meeting:
    """A residual addition of a traced forward.

    Attributes:
        addition: Name of the node.
        shortcut: Name of the node of the operand that is carried past the branch.
        branch: Name of the node of the other operand.
        channels: Width C of the sum.
        projection: True if the shortcut has layers of its own.
        strided: True if the shortcut shrinks the map.
        normed: True if the sum is read by a layer norm alone, as in post-norm Transformers.
    """

    addition: str
    shortcut: str
    branch: str
    channels: int
    projection: bool
    strided: bool
    normed: bool


class UnitTracer(fx.Tracer):
    """Traces one module's own forward; its children stay calls, apart from those named in `inline`."""

    def __init__(self, inline: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.inline = inline

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Everything is a black box, whatever package it comes from."""
        return module_qualified_name not in self.inline

    def keys(self, obj: fx.Proxy) -> Any:
        """`**kwargs` that a forward only hands on is traced as one argument."""
        return [EXTRA] if obj.node.op == "placeholder" and str(obj.node.target).startswith("**") else super().keys(obj)


def trace_unit(unit: nn.Module, training: bool) -> fx.Graph:
    """The graph of a module's own forward, in training or in evaluation mode."""
    before = unit.training
    unit.training = training
    try:
        # What is compared with None decides the way through the code, so it is fixed; calls that differ then fail.
        fixed = dict.fromkeys(_compared_with_none(inspect.unwrap(type(unit).forward)))
        graph = UnitTracer(inlined(unit)).trace(unit, concrete_args=fixed or None)
    finally:
        unit.training = before
    for node in list(graph.nodes):
        if EXTRA in node.kwargs:  # kwargs["mhex_extra"] -> kwargs
            item = node.kwargs[EXTRA]
            node.kwargs = {**node.kwargs, EXTRA: item.args[0]}
            if not item.users:
                graph.erase_node(item)
    return graph


def _compared_with_none(forward: Any) -> list[str]:
    """Arguments of a forward that are None by default and that its code tests for being so."""
    optional = {name for name, p in inspect.signature(forward).parameters.items() if p.default is None}
    steps = list(dis.get_instructions(forward))
    pairs = [(a.argval, b) for a, b in itertools.pairwise(steps) if a.opname == "LOAD_FAST" and a.argval in optional]
    triples = [(a.argval, c) for a, _, c in zip(steps, steps[1:], steps[2:], strict=False) if a.argval in optional]
    tested = {name for name, step in pairs if "NONE" in step.opname} | {n for n, s in triples if s.opname == "IS_OP"}
    return sorted(tested)


def inlined(unit: nn.Module) -> tuple[str, ...]:
    """Children to look into. BERT-like layers keep their additions in submodules, together with the norms."""
    names = ("attention.output", "output")
    if all(any(n == f"{name}.LayerNorm" for n, _ in unit.named_modules()) for name in names):
        return ("attention", *names)
    return ()


def meetings(unit: nn.Module) -> list[Meeting]:
    """Residual additions in the module's own forward, in order of execution.

    Raises:
        UNTRACEABLE: The forward cannot be traced.
    """
    graph = trace_unit(unit, training=False)
    found = [_meeting(unit, node) for node in graph.nodes if _is_addition(node)]
    return [meeting for meeting in found if meeting is not None]


def adds_in_python(module: nn.Module) -> bool:
    """False if the code of the module's class holds no addition at all, so that tracing it is a waste of time."""
    if type(module).__module__.startswith("torch.nn."):
        return False
    if inlined(module):
        return True
    methods = [m for c in type(module).__mro__ if not c.__module__.startswith("torch.nn.") for m in vars(c).values()]
    return any(_adds(function) for m in methods if (function := getattr(m, "__wrapped__", m)) is not None)


def _adds(function: Any) -> bool:
    if not isinstance(function, FunctionType):
        return False
    return any(
        (i.opname == "BINARY_OP" and i.argrepr in ("+", "+="))
        or (i.opname in ("LOAD_ATTR", "LOAD_METHOD") and str(i.argval) in _ADDING_METHODS)
        for i in dis.get_instructions(function)
    )


def _is_addition(node: fx.Node) -> bool:
    called = (node.op == "call_function" and node.target in _ADDITIONS) or (
        node.op == "call_method" and node.target in _ADDING_METHODS
    )
    return called and len(node.args) == 2 and not node.kwargs and all(isinstance(a, fx.Node) for a in node.args)


def _meeting(unit: nn.Module, addition: fx.Node) -> Meeting | None:
    a, b = (arg for arg in addition.args if isinstance(arg, fx.Node))
    above_a, above_b = _ancestors(a), _ancestors(b)
    own_a, own_b = above_a - above_b, above_b - above_a
    size_a, size_b = (_size(unit, own) for own in (own_a, own_b))
    if size_a == size_b or max(size_a, size_b)[0] == 0:  # neither has more to it than the other: no shortcut
        return None
    shortcut, branch, own = (a, b, own_a) if size_a < size_b else (b, a, own_b)
    channels = _width(unit, branch)
    fork = shortcut if shortcut in _ancestors(branch) else _fork(above_a & above_b)
    stream = next(node for node in addition.graph.nodes if node.op == "placeholder")
    if fork is None or channels is None or stream not in _ancestors(fork) or not _closes(fork, addition):
        return None
    passed = [module for node in own if (module := _module(unit, node)) is not None]
    inner = [layer for module in passed for layer in module.modules()]
    return Meeting(
        addition.name,
        shortcut.name,
        branch.name,
        channels,
        projection=any(isinstance(layer, _LAYERS) for layer in inner),
        strided=any(isinstance(layer, _STRIDED) and _stride(layer) > 1 for layer in inner),
        normed=all(isinstance(_module(unit, user), nn.LayerNorm) for user in addition.users),
    )


def _ancestors(node: fx.Node) -> set[fx.Node]:
    """The node and everything it is computed from."""
    found, waiting = {node}, [node]
    while waiting:
        for before in waiting.pop().all_input_nodes:
            if before not in found:
                found.add(before)
                waiting.append(before)
    return found


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


def _module(unit: nn.Module, node: fx.Node) -> nn.Module | None:
    return unit.get_submodule(str(node.target)) if node.op == "call_module" else None


def _size(unit: nn.Module, nodes: set[fx.Node]) -> tuple[int, int]:
    """Layers and parameters of the modules that these nodes call."""
    modules = [module for node in nodes if (module := _module(unit, node)) is not None]
    layers = [layer for module in modules for layer in module.modules() if isinstance(layer, _LAYERS)]
    return len(layers), sum(p.numel() for module in modules for p in module.parameters())


def _stride(layer: Any) -> int:
    stride = layer.stride
    return int(stride if isinstance(stride, int) else max(stride))


def _width(unit: nn.Module, node: fx.Node) -> int | None:
    """Channels of a branch's result: those of the last layer on the way to it."""
    read: tuple[tuple[type[nn.Module], Callable[[Any], int]], ...] = (
        (nn.modules.conv._ConvNd, lambda layer: layer.out_channels),
        (nn.modules.batchnorm._NormBase, lambda layer: layer.num_features),
        (nn.Linear, lambda layer: layer.out_features),
        (nn.MultiheadAttention, lambda layer: layer.embed_dim),
        (nn.LayerNorm, lambda layer: layer.normalized_shape[-1]),
    )
    for step in _backwards(node):
        module = _module(unit, step)
        for layer in reversed([] if module is None else list(module.modules())):
            for kind, width in read:
                if isinstance(layer, kind):
                    return width(layer)
    return None


def _backwards(node: fx.Node) -> Iterator[fx.Node]:
    """The node and what it is computed from, nearest first."""
    order = list(node.graph.nodes)
    yield from sorted(_ancestors(node), key=order.index, reverse=True)
