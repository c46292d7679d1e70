"""Where a tensor of a traced forward comes from: its ancestors, its channels and its positions."""

from __future__ import annotations

import dis
import inspect
import operator
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import fx, nn
from torch.nn import functional as F

from mhex.capture.hooks import after_call, before_call
from mhex.heads.wiring.channels import Channels, returned

ADDING_METHODS = {"add", "add_"}
# What tracing code that was not written for it may raise; anything else is a mistake of ours.
UNTRACEABLE = (
    fx.proxy.TraceError,
    TypeError,
    ValueError,
    AttributeError,
    LookupError,
    NameError,
    ArithmeticError,
    AssertionError,
    RuntimeError,
    NotImplementedError,
)
EXTRA = "mhex_extra"  # stands for `**kwargs` while tracing
_NO_STEPS = {"EXTENDED_ARG", "CACHE", "NOT_TAKEN", "NOP", "RESUME"}


class UnitTracer(fx.Tracer):
    """Traces one module's own forward; its children stay calls, apart from those named in `inline`.

    Args:
        inline: Names of children whose code becomes part of the graph.
        hooked: Whether their hooks become part of it too.
    """

    def __init__(self, inline: tuple[str, ...] = (), hooked: bool = False) -> None:
        super().__init__()
        self.inline, self.hooked = inline, hooked

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A call of a child, between its hooks if its own code is traced."""
        name = self.path_of_module(m)
        if name not in self.inline:
            return super().call_module(m, forward, args, kwargs)
        if not self.hooked:
            return super().call_module(m, m.forward, args, kwargs)  # without its hooks, which are for tensors
        child = self.create_proxy("get_attr", name, (), {})
        shown = {key: value for key, value in kwargs.items() if key != EXTRA}
        taken: Any = self.create_proxy("call_function", before_call, (child, args, shown), {})
        # What is no tensor has decided the way through the code, so a hook cannot change it.
        args = tuple(taken[0][place] if isinstance(x, fx.Proxy) else x for place, x in enumerate(args))
        kwargs |= {key: taken[1][key] for key, x in shown.items() if isinstance(x, fx.Proxy)}
        result = super().call_module(m, m.forward, args, kwargs)
        shown = {key: value for key, value in kwargs.items() if key != EXTRA}
        returned: Any = self.create_proxy("call_function", after_call, (child, args, shown, result), {})
        return tuple(returned[k] for k in range(len(result))) if isinstance(result, tuple) else returned

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Everything is a black box, whatever package it comes from."""
        return module_qualified_name not in self.inline

    def keys(self, obj: fx.Proxy) -> Any:
        """`**kwargs` that a forward only hands on is traced as one argument."""
        return [EXTRA] if obj.node.op == "placeholder" and str(obj.node.target).startswith("**") else super().keys(obj)


def trace_unit(unit: nn.Module, training: bool, given: Iterable[str] = (), hooked: bool = False) -> fx.Graph:
    """The graph of a module's own forward.

    Args:
        unit: The module; left as it is.
        training: Whether in training or in evaluation mode.
        given: Arguments that are tested for None and are not None. All others are None.
        hooked: Whether the graph calls the hooks of children whose code became part of it.

    Raises:
        UNTRACEABLE: The forward cannot be traced, or does not do the same every time.
    """
    before = unit.training
    unit.training = training
    try:
        with _no_dice():
            graph, again = (_traced(unit, set(given), hooked) for _ in range(2))
    finally:
        unit.training = before
    if graph.python_code("self").src != again.python_code("self").src:
        raise fx.proxy.TraceError("its forward does not do the same every time")
    return graph


def _traced(unit: nn.Module, given: set[str], hooked: bool) -> fx.Graph:
    # What is compared with None decides the way through the code, so it is fixed.
    fixed = {name: None for name in compared_arguments(unit) if name not in given}
    own = dict(vars(unit))
    try:
        graph = UnitTracer(inlined(unit), hooked).trace(unit, concrete_args=fixed or None)
    finally:
        written = [name for name, value in vars(unit).items() if name not in own or own[name] is not value]
        vars(unit).clear()
        vars(unit).update(own)
    if any(name.startswith("_tensor_constant") for name in written):  # the tracer leaves them on the module
        raise fx.proxy.TraceError("its forward makes tensors that do not depend on its input; register them as buffers")
    if written:
        raise fx.proxy.TraceError(f"its forward writes to self.{written[0]}")
    for node in list(graph.nodes):
        if EXTRA in node.kwargs:  # kwargs["mhex_extra"] -> kwargs
            item = node.kwargs[EXTRA]
            node.kwargs = {**node.kwargs, EXTRA: item.args[0]}
            if not item.users:
                graph.erase_node(item)
    return graph


@contextmanager
def _no_dice() -> Iterator[None]:
    """Fail if random numbers are drawn in Python meanwhile: what they decide would be decided for ever."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()

    def rewind() -> None:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])

    try:
        yield
        after = _draw()
        rewind()
        if _draw() != after:
            raise fx.proxy.TraceError("its forward draws random numbers itself; draw them in a submodule")
    finally:
        rewind()


def _draw() -> tuple[float, float, float]:
    return random.random(), float(np.random.random_sample()), float(torch.rand((), device="cpu"))


def compared_arguments(unit: nn.Module) -> list[str]:
    """Arguments of a module's forward that are None by default and that its code tests for being so."""
    forward = inspect.unwrap(type(unit).forward)
    optional = {name for name, p in inspect.signature(forward).parameters.items() if p.default is None}
    return sorted(optional & compared_with_none((i.opname, i.argval) for i in dis.get_instructions(forward)))


def compared_with_none(instructions: Iterable[tuple[str, Any]]) -> set[str]:
    """Local names that byte code compares with None.

    Args:
        instructions: Names and arguments. Python 3.13 and 3.14 load two names at once, as a pair, and have further
            kinds of loads; a test reads the name that was loaded last.
    """
    steps = [(name, value) for name, value in instructions if name not in _NO_STEPS]
    tested: set[str] = set()
    for number, (name, value) in enumerate(steps):
        if not name.startswith("LOAD_FAST"):
            continue
        following = [*steps[number + 1 : number + 3], ("", None), ("", None)]
        jumps = following[0][0].endswith(("_IF_NONE", "_IF_NOT_NONE"))
        compares = following[0] == ("LOAD_CONST", None) and following[1][0] == "IS_OP"
        if jumps or compares:
            tested.add(value[-1] if isinstance(value, tuple) else value)
    return tested


def inlined(unit: nn.Module) -> tuple[str, ...]:
    """Children to look into. BERT-like layers keep their additions in submodules, together with the norms."""
    names = ("attention.output", "output")
    if all(any(n == f"{name}.LayerNorm" for n, _ in unit.named_modules()) for name in names):
        return ("attention", *names)
    return ()


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
        or (i.opname in ("LOAD_ATTR", "LOAD_METHOD") and str(i.argval) in ADDING_METHODS)
        for i in dis.get_instructions(function)
    )


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
