"""A forward of a unit's own code in which calls stand in the place of residual additions."""

from __future__ import annotations

import inspect
import itertools
import linecache
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

from torch import nn

from mhex.capture.junctions import ROOT, Junction, first_line
from mhex.capture.masks import MASKS
from mhex.capture.residual import meetings
from mhex.capture.unit_graph import EXTRA, UNTRACEABLE, compared_arguments, trace_unit
from mhex.errors import CaptureError, UnsupportedModelError

Forward = Callable[..., Any]
# What takes the place of an addition: an attribute of the unit, called with these arguments before the tensors.
Calls = Mapping[Junction, tuple[str, tuple[str, ...]]]
_Code = tuple[str, Mapping[str, Any]]


def rewritten(unit: nn.Module, calls: Calls) -> Forward:
    """A forward for a unit with calls in the place of its additions; the unit is left as it is.

    The code may take another way in training, and another if it is given a mask: each gets a forward of its own.

    Args:
        unit: The unit; its forward is traced.
        calls: What to call at each junction, all of this unit.

    Raises:
        UnsupportedModelError: The forward cannot be traced in training mode, or adds elsewhere in it.
    """
    name = next(iter(calls)).unit or ROOT
    tested = compared_arguments(unit)
    plain = _of_modes(unit, calls, ())
    ways: dict[str, Forward] = {}
    for mask in (argument for argument in tested if argument in MASKS):
        try:
            ways[mask] = _of_modes(unit, calls, (mask,))
        except UnsupportedModelError:  # a call with this mask is refused then, see `_by_arguments`
            continue
    return _by_arguments(unit, name, tested, plain, ways) if tested else plain


def _of_modes(unit: nn.Module, calls: Calls, given: Iterable[str]) -> Forward:
    """The forward of a way through the code, in both modes."""
    name = next(iter(calls)).unit or ROOT
    try:
        codes = {training: _code(unit, training, given, calls) for training in (True, False)}
    except UNTRACEABLE as error:
        raise UnsupportedModelError(
            f"{name} cannot be rewritten ({first_line(error)}); leave it out with where=[...]."
        ) from error
    forward = _compiled(type(unit), codes[False])
    if codes[True][0] != codes[False][0]:  # the unit does something else in training
        forward = _by_mode(_compiled(type(unit), codes[True]), forward)
    return forward


def _code(unit: nn.Module, training: bool, given: Iterable[str], calls: Calls) -> _Code:
    """Source of a forward with its additions replaced, and the names that it uses."""
    found = meetings(unit, trace_unit(unit, training, given)).found
    graph = trace_unit(unit, training, given, hooked=True)
    nodes = {node.name: node for node in graph.nodes}
    masks = {str(n.target): n for n in graph.nodes if n.op == "placeholder" and n.target in MASKS}
    for junction, (target, first) in calls.items():
        # Names of nodes depend on the way through the code; the number of an addition does not.
        meeting = found[junction.number] if junction.number < len(found) else None
        if meeting is None or meeting.channels != junction.meeting.channels:
            raise UnsupportedModelError(
                f"{junction.unit or ROOT} adds its shortcut elsewhere in training or with a mask than without, so no "
                "head fits there; leave it out with where=[...]."
            )
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


def _by_mode(training: Forward, evaluation: Forward) -> Forward:
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return (training if self.training else evaluation)(self, *args, **kwargs)

    return forward


def _by_arguments(
    unit: nn.Module, name: str, tested: list[str], plain: Forward, ways: Mapping[str, Forward]
) -> Forward:
    """A forward that looks at its arguments as the unit's own does, and goes the way that they ask for.

    It is written out with the arguments of the unit's forward, so that it can be called and compiled like that one.
    """
    parameters = list(inspect.signature(inspect.unwrap(type(unit).forward)).parameters.values())
    names: dict[str, Any] = {"_refuse": _refusal(name), "_plain": plain}
    stars: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    taken: list[str] = []
    passed: list[str] = []
    for p in parameters:
        names[f"_default_{p.name}"] = p.default
        default = "" if p.default is p.empty else f"=_default_{p.name}"
        star = stars.get(p.kind, "")
        if p.kind is p.KEYWORD_ONLY and not any(t.startswith("*") for t in taken):
            taken.append("*")
        taken.append(f"{star}{p.name}{default}")
        passed.append(f"{star}{p.name}")
    passed.sort(key=lambda argument: argument.startswith("*"))  # traced code takes all that have a name by place
    lines = [f"def forward({', '.join(taken)}):"]
    for argument in tested:
        if argument not in ways:
            lines += [f"    if {argument} is not None:", f"        _refuse({argument!r})"]
    for one, other in itertools.combinations(ways, 2):
        lines += [f"    if {one} is not None and {other} is not None:", f"        _refuse({one!r}, {other!r})"]
    for argument, way in ways.items():
        names[f"_with_{argument}"] = way
        lines += [f"    if {argument} is not None:", f"        return _with_{argument}({', '.join(passed)})"]
    lines += [f"    return _plain({', '.join(passed)})", ""]
    return _compiled(type(unit), ("\n".join(lines), names))


def _refusal(name: str) -> Callable[..., NoReturn]:
    def refuse(argument: str, other: str | None = None) -> NoReturn:
        if other is not None:
            raise CaptureError(
                f"{name} was called with {argument} and {other}, and heads know the way of its forward with one of "
                "them at a time. Call the model with one, or leave the unit out with where=[...]."
            )
        raise CaptureError(
            f"{name} was called with {argument}, with which its forward takes a way that heads do not know: they were "
            f"placed where {argument} is None. Call the model without it, or leave the unit out with where=[...]."
        )

    return refuse
