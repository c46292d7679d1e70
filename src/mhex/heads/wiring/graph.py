"""Tracing the forward of one unit of a model, and reading its byte code before."""

import dis
import functools
import inspect
import operator
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from types import CodeType, FunctionType
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from mhex.capture.hooks import after_call, before_call

ADDITIONS = {operator.add, operator.iadd, torch.add, "add", "add_"}
# What tracing code that was not written for it may raise; anything else is a mistake of ours.
UNTRACEABLE = (
    *(fx.proxy.TraceError, TypeError, ValueError, AttributeError, LookupError, NameError),
    *(ArithmeticError, AssertionError, RuntimeError, NotImplementedError),
)
EXTRA = "mhex_extra"  # stands for `**kwargs` while tracing
_NO_STEPS = {"EXTENDED_ARG", "CACHE", "NOT_TAKEN", "NOP", "RESUME"}


class UnitTracer(fx.Tracer):
    """Traces one module's own forward; children stay calls, but for those in `inline`, with hooks if `hooked`."""

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
        visible = {key: value for key, value in kwargs.items() if key != EXTRA}
        hooked: Any = self.create_proxy("call_function", before_call, (child, args, visible), {})
        # What is no tensor has decided the way through the code, so a hook cannot change it.
        args = tuple(hooked[0][place] if isinstance(x, fx.Proxy) else x for place, x in enumerate(args))
        kwargs |= {key: hooked[1][key] for key, x in visible.items() if isinstance(x, fx.Proxy)}
        result = super().call_module(m, m.forward, args, kwargs)
        visible = {key: value for key, value in kwargs.items() if key != EXTRA}
        output: Any = self.create_proxy("call_function", after_call, (child, args, visible, result), {})
        return tuple(output[k] for k in range(len(result))) if isinstance(result, tuple) else output

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Everything is a black box, whatever package it comes from."""
        return module_qualified_name not in self.inline

    def keys(self, obj: fx.Proxy) -> Any:
        """`**kwargs` that a forward only hands on is traced as one argument."""
        return [EXTRA] if obj.node.op == "placeholder" and str(obj.node.target).startswith("**") else super().keys(obj)


def trace_unit(unit: nn.Module, training: bool, present: Iterable[str] = (), hooked: bool = False) -> fx.Graph:
    """The graph of a module's own forward, in training or in evaluation mode; the module is left as it is.

    Of the arguments that are tested for None, those that are `present` are not None; `hooked` is that of `UnitTracer`.
    Raises one of `UNTRACEABLE` if the forward cannot be traced, or does not do the same every time.
    """
    before = unit.training
    unit.training = training
    try:
        with _no_dice():
            graph, again = (_traced(unit, set(present), hooked) for _ in range(2))
    finally:
        unit.training = before
    if graph.python_code("self").src != again.python_code("self").src:
        raise fx.proxy.TraceError("its forward does not do the same every time")
    return graph


def _traced(unit: nn.Module, present: set[str], hooked: bool) -> fx.Graph:
    # What is compared with None decides the way through the code, so it is fixed.
    fixed = {name: None for name in compared_arguments(unit) if name not in present}
    before = [_State(module) for module in (unit, *map(unit.get_submodule, inlined(unit)))]
    try:
        graph = UnitTracer(inlined(unit), hooked).trace(unit, concrete_args=fixed or None)
    finally:
        changes = [name for state in before for name in state.restore()]
    if any(name.startswith("_tensor_constant") for name in changes):  # the tracer leaves them on the module
        raise fx.proxy.TraceError("its forward makes tensors that do not depend on its input; register them as buffers")
    if changes:
        raise fx.proxy.TraceError(f"its forward writes to self.{changes[0]}")
    arguments = inspect.unwrap(type(unit).forward).__code__.co_varnames[1:]
    for name, node in zip(arguments, graph.find_nodes(op="placeholder"), strict=False):
        if name in fixed:  # which the tracer gave another name, and no caller knows that
            node.target = name
    for node in list(graph.nodes):
        if EXTRA in node.kwargs:  # kwargs["mhex_extra"] -> kwargs
            item = node.kwargs[EXTRA]
            node.kwargs = {**node.kwargs, EXTRA: item.args[0]}
            if not item.users:
                graph.erase_node(item)
    return graph


class _State:
    """What a module keeps, and what is in its tables and lists: caches that its forward fills."""

    def __init__(self, module: nn.Module) -> None:
        self.module, self.attributes = module, dict(vars(module))
        self.contents = {name: _entries(value) for name, value in self.attributes.items()}

    def restore(self) -> list[str]:
        """Put everything back, and name what was changed."""
        now = vars(self.module)
        changes = [name for name, value in now.items() if self.attributes.get(name, self) is not value]
        now.clear()
        now.update(self.attributes)
        for name, entries in self.contents.items():
            value: Any = self.attributes[name]
            if [*map(id, _entries(value))] == [*map(id, entries)]:
                continue
            changes.append(name)
            value.clear()
            if isinstance(value, dict):
                value.update(zip(entries[::2], entries[1::2], strict=True))
            else:
                value.extend(entries)
        return changes


def _entries(value: Any) -> list[Any]:
    """Keys and values of a table, each key before its value, or the entries of a list; nothing for other values."""
    return list(chain(*value.items())) if isinstance(value, dict) else list(value) if isinstance(value, list) else []


@contextmanager
def _no_dice() -> Iterator[None]:
    """Fail if random numbers are drawn in Python meanwhile: what they decide would be decided for ever."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
        arrays = zip(np.random.get_state(), states[1], strict=True)
        unmoved = random.getstate() == states[0] and all(np.array_equal(new, old) for new, old in arrays)
        if not (unmoved and torch.equal(torch.get_rng_state(), states[2])):
            raise fx.proxy.TraceError("its forward draws random numbers itself; draw them in a submodule")
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


def compared_arguments(unit: nn.Module) -> list[str]:
    """Arguments of a module's forward that are None by default and that its code tests for being so."""
    forward = inspect.unwrap(type(unit).forward)
    optional = {name for name, p in inspect.signature(forward).parameters.items() if p.default is None}
    return sorted(optional & _tested_for_none(forward.__code__))


@functools.lru_cache(maxsize=1024)
def _tested_for_none(code: CodeType) -> set[str]:
    return compared_with_none((i.opname, i.argval) for i in dis.get_instructions(code))


def compared_with_none(instructions: Iterable[tuple[str, Any]]) -> set[str]:
    """Local names that byte code, as names and arguments of instructions, compares with None."""
    # Python 3.13 and 3.14 load two names at once, as a pair, and have further kinds of loads; a test reads the name
    # that was loaded last.
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
    functions = [getattr(method, "__wrapped__", method) for method in methods]
    return any(_adds(function.__code__) for function in functions if isinstance(function, FunctionType))


@functools.lru_cache(maxsize=4096)
def _adds(code: CodeType) -> bool:
    """Whether byte code holds an addition; the methods of a class are read once, not for each of its modules."""
    return any(
        (i.opname == "BINARY_OP" and i.argrepr in ("+", "+="))
        or (i.opname in ("LOAD_ATTR", "LOAD_METHOD") and str(i.argval) in ADDITIONS)
        for i in dis.get_instructions(code)
    )


def module_of(unit: nn.Module, node: fx.Node) -> nn.Module | None:
    """The child that a node calls, or None."""
    return unit.get_submodule(str(node.target)) if node.op == "call_module" else None


def ancestors(node: fx.Node) -> set[fx.Node]:
    """The node and everything it is computed from."""
    reached = {node}
    for step in reversed(node.graph.nodes):  # from the last that is executed to the first
        if step in reached:
            reached.update(step.all_input_nodes)
    return reached
