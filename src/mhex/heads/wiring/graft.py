"""Putting a module where residual branches meet, inside a model whose code stays as it is.

A unit's own forward is traced, its residual addition becomes a call of `join`, and the unit gets a class derived from
its own whose forward is that code. Everything else (children, names, parameters, hooks) stays; `ungraft` gives the
class back. Nothing is kept between calls here: what a unit computes depends on its arguments and weights alone, so
threads, replicas and recomputed activations cannot mix.
"""

from __future__ import annotations

import copyreg
import inspect
import linecache
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from mhex.capture.anatomy import GUEST
from mhex.capture.batch import MASKS
from mhex.errors import CaptureError, UnsupportedModelError
from mhex.heads.wiring.graph import EXTRA, UNTRACEABLE, compared_arguments, inlined, trace_unit
from mhex.heads.wiring.residual import ROOT, Junction, first_line, meetings

Forward = Callable[..., Any]
# What takes the place of an addition: an attribute of the unit, called with these arguments before the tensors.
Calls = Mapping[Junction, tuple[str, tuple[str, ...]]]
_Code = tuple[str, Mapping[str, Any]]
# Called as join(name, shortcut, branch, masks); returns what takes the place of the sum.
Join = Callable[[str, Tensor, Tensor, Mapping[str, Any]], Tensor]
_JOIN = "_mhex_join"
_CHILD = "mhex_gate"  # name of a planted module inside its unit


@dataclass(eq=False)
class Rewrite:
    """How a unit got its class, so that copies get it too and pickles make it again."""

    kind: type[nn.Module]  # the class that the unit had
    calls: Calls
    result: type[nn.Module] | None = None  # the class that it got; pickles leave it out

    def __deepcopy__(self, memo: Any) -> Rewrite:
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "result": None}


def _rewrite(unit: nn.Module, calls: Calls) -> None:
    """Give a unit a class derived from its own, in which these calls take the place of its additions."""
    rewrite = Rewrite(type(unit), calls)
    names = {"__module__": rewrite.kind.__module__, "__qualname__": rewrite.kind.__qualname__}
    methods = {"__reduce_ex__": _reduced, "forward": rewritten(unit, calls), "_mhex_rewrite": rewrite}
    rewrite.result = type(rewrite.kind.__name__, (rewrite.kind,), {**names, **methods})
    unit.__class__ = rewrite.result


def _reduced(unit: Any, protocol: Any) -> Any:
    """What the unit's own class gives, apart from the function that makes a new unit."""
    rewrite: Rewrite = type(unit)._mhex_rewrite
    reduced: Any = rewrite.kind.__reduce_ex__(unit, protocol)
    function, arguments, *state = reduced
    if function is copyreg.__newobj__ and arguments == (type(unit),):  # type: ignore[attr-defined]
        return _new, (rewrite,), *state
    return function, arguments, *state


def _new(rewrite: Rewrite) -> Any:
    if rewrite.result is not None:  # a copy
        return rewrite.result.__new__(rewrite.result)
    waiting: Any = type(rewrite.kind.__name__, (rewrite.kind,), {"__setstate__": _grown, "_mhex_rewrite": rewrite})
    return waiting.__new__(waiting)


def _grown(unit: Any, state: Any) -> None:
    """The unit has its children now, so its class can be made; those that came after it was traced are hidden."""
    rewrite: Rewrite = type(unit)._mhex_rewrite
    unit.__class__ = rewrite.kind
    unit.__setstate__(state)
    children = dict(unit._modules)
    for name in (GUEST, *(target for target, _ in rewrite.calls.values())):
        unit._modules.pop(name, None)
    _rewrite(unit, rewrite.calls)
    unit._modules.update(children)


def kind_of_unit(unit: nn.Module) -> type[nn.Module]:
    """The class of a unit, or the one that it had before its forward was rewritten."""
    kind = type(unit)
    return kind._mhex_rewrite.kind if hasattr(kind, "_mhex_rewrite") else kind


def rewritten(unit: nn.Module, calls: Calls) -> Forward:
    """A forward for a unit with calls in the place of its additions; the unit is left as it is.

    The code may take another way in training, and another if it is given a mask: each gets a forward of its own.

    Raises:
        UnsupportedModelError: The forward cannot be traced in training mode, or adds elsewhere in it.
    """
    name, tested = next(iter(calls)).unit or ROOT, compared_arguments(unit)
    plain = _of_modes(unit, name, calls, ())
    ways: dict[str, Forward] = {}
    for mask in (argument for argument in tested if argument in MASKS):
        with suppress(UnsupportedModelError):  # a call with this mask is refused then
            ways[mask] = _of_modes(unit, name, calls, (mask,))
    signature = inspect.signature(inspect.unwrap(type(unit).forward))
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    moved = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.KEYWORD_ONLY} <= kinds
    places = list(signature.parameters)[1:]

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        arguments = {**dict(zip(places, args, strict=False)), **kwargs}
        if moved:
            arguments, args, kwargs = _as_traced(signature, (self, *args), kwargs)
        present = [argument for argument in tested if arguments.get(argument) is not None]
        if len(present) > 1 or not ways.keys() >= {*present}:
            raise CaptureError(
                f"{name} was called with {' and '.join(present)}, with which its forward takes a way that heads do not "
                f"know: they were placed for calls with {' or '.join(ways) or 'none of them'}. Call the model so, or "
                "leave the unit out with where=[...]."
            )
        return (ways[present[0]] if present else plain)(self, *args, **kwargs)

    forward.__signature__ = signature  # type: ignore[attr-defined]  # callers ask for the arguments of the unit's own
    return forward if tested or moved else plain


def _as_traced(
    signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[dict[str, Any], tuple[Any, ...], dict[str, Any]]:
    """Arguments of a call by name, and as a traced forward takes them, which has keyword-only ones before `*args`."""
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    names = {parameter.kind: name for name, parameter in signature.parameters.items()}
    extra = bound.arguments.pop(names[inspect.Parameter.VAR_POSITIONAL])
    rest = bound.arguments.pop(names.get(inspect.Parameter.VAR_KEYWORD, ""), {})
    return bound.arguments, (*list(bound.arguments.values())[1:], *extra), rest


def _of_modes(unit: nn.Module, name: str, calls: Calls, present: Iterable[str]) -> Forward:
    """The forward of a way through the code, in training and in evaluation mode."""
    try:
        training, evaluation = (_code(unit, mode, present, calls) for mode in (True, False))
    except UNTRACEABLE as error:
        words = f"{name} cannot be rewritten ({first_line(error)})"
        raise UnsupportedModelError(f"{words}; leave it out with where=[...].") from error
    evaluating = _compiled(type(unit), evaluation)
    if training[0] == evaluation[0]:
        return evaluating
    train = _compiled(type(unit), training)  # the unit does something else in training

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return (train if self.training else evaluating)(self, *args, **kwargs)

    return forward


def _code(unit: nn.Module, training: bool, present: Iterable[str], calls: Calls) -> _Code:
    """Source of a forward with its additions replaced, and the names that it uses."""
    graph = trace_unit(unit, training, present)
    met, _ = meetings(unit, graph)
    if inlined(unit):  # the hooks of others are called with them
        graph = trace_unit(unit, training, present, hooked=True)
    nodes = {node.name: node for node in graph.nodes}
    absent = {*compared_arguments(unit)} - {*present}
    masks = {str(n.target): n for n in graph.nodes if n.op == "placeholder" and n.target in MASKS.keys() - absent}
    for junction, (target, first) in calls.items():
        # Names of nodes depend on the way through the code; the number of an addition does not.
        meeting = met[junction.number] if junction.number < len(met) else None
        if meeting is None or meeting.channels != junction.meeting.channels:
            words = f"{junction.unit or ROOT} adds its shortcut elsewhere in training or with a mask than without"
            raise UnsupportedModelError(f"{words}; leave it out with where=[...].")
        addition = nodes[meeting.addition]  # hooks are no additions, so it has the same name among them
        shortcut, branch = reversed(addition.args) if meeting.branch_first else addition.args
        with graph.inserting_before(addition):
            call = graph.call_module(target, (*first, shortcut, branch, masks))
        addition.replace_all_uses_with(call)
        graph.erase_node(addition)
    code = graph.python_code("self")
    return re.sub(rf"\b{EXTRA} = (\w+)", r"**\1", code.src), code.globals


def _compiled(kind: type[nn.Module], code: _Code) -> Forward:
    source, names = code
    space = dict(names)
    place = f"<mhex forward of {kind.__name__} {id(space)}>"
    linecache.cache[place] = (len(source), None, source.splitlines(True), place)  # so that tracebacks show it
    exec(compile(source, place, "exec"), space)
    forward: Forward = space["forward"]
    forward.__module__ = kind.__module__
    return forward


def graft_junctions(model: nn.Module, junctions: Iterable[Junction], join: Join) -> None:
    """Route the additions of these junctions through `join`; `ungraft` undoes it.

    The code of a unit is the one that was traced: flags that its forward reads off itself are taken as they are now.
    Children whose code became part of it (of a Hugging Face `BertLayer`, those around its additions) are not called;
    their forward hooks fire all the same, their backward hooks do not.
    """
    for unit, members in _by_unit(model, junctions).items():
        _rewrite(unit, {j: (_JOIN, (j.name,)) for j in members})
        unit.__dict__[_JOIN] = join


def plant(model: nn.Module, joins: Mapping[Junction, nn.Module]) -> dict[str, str]:
    """Let modules stand where the model adds; they become children of the units, and there is no way back.

    Each is called as a `Join`, without a name. The result has their dotted names in the model, by name of the junction.
    """
    planted: dict[str, str] = {}
    places: list[tuple[nn.Module, dict[Junction, str]]] = []
    for unit, members in _by_unit(model, joins).items():
        children = {j: "_".join([_CHILD, *j.name.split(":")[1:]]) for j in members}
        for child in children.values():
            if hasattr(unit, child):
                raise UnsupportedModelError(f"{type(unit).__name__} has an attribute {child!r} of its own; rename it.")
        _rewrite(unit, {j: (child, ()) for j, child in children.items()})
        places.append((unit, children))
    # All units are traced before any has these children: a forward may run all that it has, and layers are counted.
    for unit, children in places:
        for junction, child in children.items():
            unit.add_module(child, joins[junction])
            planted[junction.name] = f"{junction.unit}.{child}" if junction.unit else child
    return planted


def _by_unit(model: nn.Module, junctions: Iterable[Junction]) -> dict[nn.Module, list[Junction]]:
    """The junctions in each unit of the model."""
    by_unit: dict[nn.Module, list[Junction]] = {}
    for junction in junctions:
        by_unit.setdefault(model.get_submodule(junction.unit), []).append(junction)
    return by_unit


def ungraft(model: nn.Module) -> None:
    """Give every grafted unit its own class back."""
    for module in model.modules():
        if is_grafted(module):
            module.__class__ = kind_of_unit(module)
            del module.__dict__[_JOIN]


def is_grafted(module: nn.Module) -> bool:
    """True for a unit whose addition is routed through a join."""
    return _JOIN in module.__dict__
