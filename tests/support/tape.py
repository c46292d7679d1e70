"""A model's pass on one sample, written down operation by operation, for relevance to be handed back along it.

Nothing here uses `mhex.capture`: torch's own tracer writes the program of primitive operations, with writes in place
already taken out; attention is written out as two matrix products and a softmax. Rules are in `rules_lrp.py`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_map

from support.attention import attention_by

KINDS: dict[str, tuple[str, ...]] = {
    "linear": ("addmm", "mm"),
    "convolution": ("convolution",),
    "batch_norm": ("native_batch_norm",),
    "layer_norm": ("native_layer_norm",),
    "softmax": ("_softmax",),
    "scores": ("baddbmm",),  # only in attention as written below
    "matmul": ("bmm",),
    "activation": ("gelu", "silu", "relu", "tanh", "elu", "leaky_relu", "hardtanh", "hardswish", "mish"),
    "gate": ("sigmoid", "hardsigmoid"),
    "sum": ("add", "sub", "rsub"),
    "product": ("mul", "div", "neg"),
    "pool": ("mean", "sum", "avg_pool2d", "_adaptive_avg_pool2d", "upsample_nearest2d", "upsample_bilinear2d"),
    "route": (
        *("view", "_unsafe_view", "permute", "transpose", "t", "expand", "clone", "alias", "detach", "_to"),
        *("slice", "select", "index", "unsqueeze", "squeeze", "unbind", "split", "split_with_sizes", "cat", "stack"),
        *("roll", "constant_pad_nd", "max_pool2d_with_indices", "repeat", "masked_fill", "flip"),
    ),
}
_KIND = {name: kind for kind, names in KINDS.items() for name in names}
_BEFORE_ATTENTION = ("route", "item", "layer_norm", "batch_norm", "product", "scores", "matmul", "softmax")
_FIRST_ONLY = ("native_batch_norm", "native_layer_norm", "max_pool2d_with_indices")


class Call:
    """One operation of the program.

    Attributes:
        name: Of the primitive operation.
        args: What it was given, tensors in place of nodes.
        nodes: Inputs that depend on what is explained, in order.
        xs: Their values.
        y: Its value; of operations with further results, the first.
        source: The call that made its first argument.
        first: True of the first layer of the network.
        projects: True of a layer that projects into attention or out of it.
        weighs: True of the product of attention probabilities with values.
    """

    def __init__(self, node: Node, values: Mapping[Node, Any], touched: set[Node], calls: Mapping[Node, Call]) -> None:
        self.node, self.values = node, values
        self.name = name_of(node)
        self.args = tree_map(self._value, node.args)
        self.kwargs = node.kwargs
        self.nodes = [n for n in node.all_input_nodes if n in touched]
        self.xs = [values[n] for n in self.nodes]
        self.y = values[node][0] if self.name in _FIRST_ONLY else values[node]
        first = node.args[0]
        self.source = calls.get(first) if isinstance(first, Node) else None
        self.first = self.projects = self.weighs = False

    def _value(self, one: Any) -> Any:
        return self.values[one] if isinstance(one, Node) else one

    def touched(self, place: int) -> bool:
        """Whether an argument depends on what is explained."""
        return self.node.args[place] in self.nodes

    def run(self, *xs: Tensor) -> Any:
        """The operation on other values of its inputs."""
        given = dict(zip(self.nodes, xs, strict=True))
        args = tree_map(lambda one: given.get(one, self._value(one)) if isinstance(one, Node) else one, self.node.args)
        result = self.node.target(*args, **self.kwargs)
        return result[0] if self.name in _FIRST_ONLY else result

    def back(self, s: Any) -> list[Tensor]:
        """The transposed Jacobian, times `s`, for every input."""
        with torch.enable_grad():
            points = [x.detach().requires_grad_() for x in self.xs]
            ys = self.run(*points)
            several = isinstance(ys, (tuple, list))
            return list(torch.autograd.grad(ys, points, tuple(s) if several else s))


Rule = Callable[[Call, Any], list[Tensor | None]]


class Tape:
    """The program of one sample.

    Args:
        function: From the tensor that is explained to the scores.
        x: Its value, with a batch axis of 1.
    """

    def __init__(self, function: Callable[[Tensor], Tensor], x: Tensor) -> None:
        with written_in_primitives(), torch.no_grad():
            program = make_fx(torch.func.functionalize(function, remove="mutations_and_views"))(x)
        self.nodes = [node for node in program.graph.nodes if node.op != "output"]
        self.values: dict[Node, Any] = {}
        with torch.no_grad():
            for node in self.nodes:
                self.values[node] = self._run(node, program, x)
        (self.output,) = next(node for node in program.graph.nodes if node.op == "output").all_input_nodes
        self.input = self.nodes[0]
        self.softmaxes = [node for node in self.nodes if str(node.target) == "aten._softmax.default"]
        after = {near for node in self.softmaxes for near in _walk(node, ahead=True)}
        self.weighings = {near for near in after if _kind(near) == "matmul"}
        sources = {near for node in (*self.softmaxes, *self.weighings) for near in _walk(node, ahead=False)}
        self.projections = {near for near in sources if _kind(near) in ("linear", "convolution")}
        for node in self.weighings:
            self.projections |= {near for near in _walk(node, ahead=True) if _kind(near) in ("linear", "convolution")}
        assert torch.allclose(self.values[self.output], function(x).detach(), rtol=1e-12, atol=1e-12)

    def _run(self, node: Node, program: nn.Module, x: Tensor) -> Any:
        if node.op == "placeholder":
            return x.detach()
        if node.op == "get_attr":
            return getattr(program, node.target).detach()
        args = tree_map(lambda one: self.values[one] if isinstance(one, Node) else one, node.args)
        return node.target(*args, **node.kwargs)

    @property
    def passes(self) -> bool:
        """Whether norms or softmax are there, which LRP lets pass relevance on."""
        return any(_kind(node) in ("layer_norm", "softmax") for node in self.nodes)

    def find(self, value: Tensor) -> Node:
        """The first node that has this value: whatever comes later comes from it."""
        for node in self.nodes:
            mine = self.values[node]
            if isinstance(mine, Tensor) and mine.shape == value.shape and torch.allclose(mine, value, 1e-11, 1e-12):
                return node
        raise AssertionError("no operation gave this value")

    def propagate(self, rules: Mapping[str, Rule], start: Tensor, cut: tuple[str, ...] = ("gate",)) -> dict[Node, Any]:
        """What arrives at every node that depends on the input.

        Args:
            rules: From kinds of operations to rules; they take what arrives at the output of a call.
            start: What the output is given, of its shape.
            cut: Kinds of operations whose values are taken for constants.
        """
        touched, calls = {self.input}, {}
        for node in self.nodes[1:]:
            if name_of(node) in ("new_zeros", "zeros_like", "ones_like") or _kind(node) in cut:
                continue
            if any(n in touched for n in node.all_input_nodes):
                assert _kind(node), f"no kind for {node.target}"
                touched.add(node)
                if _kind(node) != "item":
                    calls[node] = Call(node, self.values, touched, calls)
                    calls[node].projects, calls[node].weighs = node in self.projections, node in self.weighings
        layers = (call for call in calls.values() if _kind(call.node) in ("linear", "convolution"))
        entrance = next(layers, None)
        if entrance is not None:
            entrance.first = True
        arrived: dict[Node, Any] = {self.output: start}
        for node in reversed(self.nodes):
            if node not in arrived or node not in touched or node is self.input:
                continue
            if _kind(node) == "item":
                parts = arrived.setdefault(node.args[0], {})
                parts[node.args[1]] = parts.get(node.args[1], 0) + arrived[node]
                continue
            call, given = calls[node], arrived[node]
            if isinstance(given, dict):
                several = [given.get(i, torch.zeros_like(one)) for i, one in enumerate(self.values[node])]
                given = several[0] if call.name in _FIRST_ONLY else several
            kind = "matmul" if call.name == "mm" and len(call.nodes) == 2 else _kind(node)
            targets = [call.source.nodes[0]] if kind == "batch_norm" and folds(call) else call.nodes
            for to, part in zip(targets, rules[kind](call, given), strict=True):
                if part is not None:
                    arrived[to] = arrived.get(to, 0) + part
        return arrived


def _walk(node: Node, ahead: bool) -> Iterator[Node]:
    """Nodes next to one, and beyond those that only move, scale or normalise, or belong to attention."""
    through = ("route", "item", "layer_norm", "product") if ahead else _BEFORE_ATTENTION
    for near in node.users if ahead else node.all_input_nodes:
        yield near
        if _kind(near) in through:
            yield from _walk(near, ahead)


def name_of(node: Node) -> str:
    """Of the primitive operation; operations that copy are named as the views that they stand for."""
    target = str(node.target)
    return target.split(".")[1].removesuffix("_copy") if target.startswith("aten.") else ""


def folds(call: Call) -> bool:
    """Whether a batch norm follows a convolution or a linear layer."""
    return call.source is not None and call.source.name in ("convolution", "addmm", "mm")


def _kind(node: Node) -> str:
    if getattr(node.target, "__name__", "") == "getitem":
        return "item"
    return _KIND.get(name_of(node), "")


@contextlib.contextmanager
def written_in_primitives() -> Iterator[None]:
    """While open, attention is `softmax(m + scale q k^T) v` in two matrix products, and a linear layer is one call."""
    original = F.linear

    def linear(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
        rows = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
        y = rows @ w.t() if b is None else torch.addmm(b, rows, w.t())
        return y if x.dim() == 2 else y.reshape(*x.shape[:-1], -1)

    def steps(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
        q, k, v, m = (tensor.flatten(0, -3) for tensor in (query, key, value, mask))
        return (torch.baddbmm(m, q, k.mT, alpha=scale).softmax(-1) @ v).unflatten(0, query.shape[:-2])

    F.linear = linear
    try:
        with attention_by(steps):
            yield
    finally:
        F.linear = original
