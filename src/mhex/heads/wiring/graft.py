"""Putting a module where residual branches meet, inside a model whose code stays as it is.

A unit's own forward is traced, its residual addition becomes a call of `join`, and the unit gets a class derived from
its own whose forward is that code. Everything else (children, names, parameters, hooks) stays; `ungraft` gives the
class back. Nothing is kept between calls here: what a unit computes depends on its arguments and weights alone, so
threads, replicas and recomputed activations cannot mix.
"""

from __future__ import annotations

import copyreg
import inspect
import itertools
import linecache
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NoReturn

from torch import Tensor, nn

from mhex.capture.anatomy import GUEST, Guest
from mhex.capture.batch import MASKS
from mhex.errors import CaptureError, UnsupportedModelError
from mhex.heads.wiring.graph import EXTRA, UNTRACEABLE, compared_arguments, trace_unit
from mhex.heads.wiring.residual import ROOT, Junction, first_line, meetings


class Recipe:
    """How a unit got its class.

    Args:
        kind: The class that it had.
        rewrite: Called with the unit and `arguments`, it gives the unit its class; a function that can be pickled.
        arguments: What else it takes.
        hidden: Children that the unit had not got when its class was made.
    """

    def __init__(
        self,
        kind: type[nn.Module],
        rewrite: Callable[..., None],
        arguments: tuple[Any, ...],
        hidden: Collection[str] = (),
    ) -> None:
        self.kind, self.rewrite, self.arguments, self.hidden = kind, rewrite, arguments, tuple(hidden)
        self.made: type[nn.Module] | None = None

    def make(self, **own: Any) -> type[nn.Module]:
        """The class, with these attributes of its own."""
        named = {"__module__": self.kind.__module__, "__qualname__": self.kind.__qualname__}
        reduce = {"__reduce_ex__": _reduced, "_mhex_recipe": self}
        self.made = type(self.kind.__name__, (self.kind,), {**named, **reduce, **own})
        return self.made

    def __deepcopy__(self, memo: Any) -> Recipe:
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "made": None}


def _reduced(unit: Any, protocol: Any) -> Any:
    """Like that of the unit's own class, apart from where a new one comes from."""
    recipe: Recipe = type(unit)._mhex_recipe
    plain: Any = recipe.kind.__reduce_ex__(unit, protocol)
    function, arguments, *rest = plain
    if function is copyreg.__newobj__ and arguments == (type(unit),):  # type: ignore[attr-defined]
        return _new, (recipe,), *rest
    return function, arguments, *rest


def _new(recipe: Recipe) -> Any:
    if recipe.made is not None:  # a copy
        return recipe.made.__new__(recipe.made)
    waiting: Any = type(recipe.kind.__name__, (recipe.kind,), {"__setstate__": _grown, "_mhex_recipe": recipe})
    return waiting.__new__(waiting)


def _grown(unit: Any, state: Any) -> None:
    """The unit has its children now, so its class can be made."""
    recipe: Recipe = type(unit)._mhex_recipe
    unit.__class__ = recipe.kind
    unit.__setstate__(state)
    children = dict(unit._modules)
    for name in recipe.hidden:
        unit._modules.pop(name, None)
    recipe.rewrite(unit, *recipe.arguments)
    unit._modules.update(children)


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


# Called as join(name, shortcut, branch, masks); returns what takes the place of the sum.
Join = Callable[[str, Tensor, Tensor, Mapping[str, Any]], Tensor]
_JOIN = "_mhex_join"
_CHILD = "mhex_gate"  # name of a planted module inside its unit


def graft(model: nn.Module, junctions: Iterable[Junction], join: Join) -> None:
    """Route the additions of these junctions through `join`.

    The code of a unit is the one that was traced: flags that its forward reads off itself are taken as they are now.
    Children whose code became part of it (of a Hugging Face `BertLayer`, those around its additions) are not called;
    their forward hooks fire all the same, their backward hooks do not.

    Args:
        model: Changed in place; `ungraft` undoes it.
        junctions: From `find_junctions`.
        join: Called with a junction's name, shortcut, branch and the masks that the unit was called with, by name.
    """
    for unit, joined in _by_unit(model, junctions):
        _rewrite(unit, {j: (_JOIN, (j.name,)) for j in joined})
        unit.__dict__[_JOIN] = join


def plant(model: nn.Module, joins: Mapping[Junction, nn.Module]) -> dict[str, str]:
    """Let modules stand where the model adds; they become children of the units, and there is no way back.

    Args:
        model: Changed in place.
        joins: What stands at each junction from `find_junctions`: called with shortcut, branch and the masks of
            the unit by name, it returns what takes the place of their sum.

    Returns:
        Dotted names of the modules inside the model, by name of the junction.
    """
    planted: dict[str, str] = {}
    places: list[tuple[nn.Module, dict[Junction, str]]] = []
    for unit, joined in _by_unit(model, joins):
        children = {j: "_".join([_CHILD, *j.name.split(":")[1:]]) for j in joined}
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


def _by_unit(model: nn.Module, junctions: Iterable[Junction]) -> list[tuple[nn.Module, list[Junction]]]:
    """Units of the model and the junctions in each."""
    by_unit: dict[str, list[Junction]] = {}
    for junction in junctions:
        by_unit.setdefault(junction.unit, []).append(junction)
    return [(model.get_submodule(name), joined) for name, joined in by_unit.items()]


def _rewrite(unit: nn.Module, calls: Calls) -> None:
    """Give a unit a class derived from its own, in which these calls take the place of its additions."""
    kind = type(unit)
    recipe = Recipe(kind, _rewrite, (calls,), [GUEST, *(target for target, _ in calls.values())])
    unit.__class__ = recipe.make(forward=rewritten(unit, calls), _mhex_original=kind)


def ungraft(model: nn.Module) -> None:
    """Give every grafted unit its own class back."""
    for module in model.modules():
        if is_grafted(module):
            module.__class__ = type(module)._mhex_original  # type: ignore[attr-defined]
            del module.__dict__[_JOIN]


def is_grafted(module: nn.Module) -> bool:
    """True for a unit whose addition is routed through a join."""
    return _JOIN in module.__dict__


def settle(model: nn.Module, guest: Guest) -> None:
    """Tell `guest` of every call of the model, and of every state that is loaded into it."""
    model.register_forward_pre_hook(guest.begin, with_kwargs=True, prepend=True)
    model.register_forward_hook(guest.finish, with_kwargs=True, always_call=True)
    model.register_load_state_dict_post_hook(guest.loaded)  # type: ignore[no-untyped-call]


def unsettle(model: nn.Module, guest: Guest) -> None:
    """Undo `settle`."""
    kinds: tuple[tuple[dict[int, Any], ...], ...] = (
        (model._forward_pre_hooks, model._forward_pre_hooks_with_kwargs),
        (model._forward_hooks, model._forward_hooks_with_kwargs, model._forward_hooks_always_called),
        (model._load_state_dict_post_hooks,),
    )
    for hooks, *marks in kinds:
        for key in [key for key, hook in hooks.items() if getattr(hook, "__self__", None) is guest]:
            for entries in (hooks, *marks):
                entries.pop(key, None)
