"""Putting a module where residual branches meet, inside a model whose code stays as it is.

A unit's own forward is traced, its residual addition becomes a call of `join`, and the unit gets a class derived from
its own whose forward is that code. Everything else (children, names, parameters, hooks) stays; `ungraft` gives the
class back. Nothing is kept between calls here: what a unit computes depends on its arguments and weights alone, so
threads, replicas and recomputed activations cannot mix.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx, nn

from mhex.capture.guest import GUEST, Guest
from mhex.capture.masks import MASKS
from mhex.capture.pickling import Recipe
from mhex.capture.residual import EXTRA, UNTRACEABLE, Meeting, adds_in_python, meetings, trace_unit
from mhex.errors import UnsupportedModelError

# Called as join(name, shortcut, branch, masks); returns what takes the place of the sum.
Join = Callable[[str, Tensor, Tensor, Mapping[str, Any]], Tensor]
_JOIN = "_mhex_join"
_CHILD = "mhex_gate"  # name of a planted module inside its unit


@dataclass(frozen=True)
class Junction:
    """A place where a shortcut and a residual branch meet.

    Attributes:
        name: Dotted name of the unit; of several additions in one unit, the earlier ones carry a suffix.
        unit: Dotted name of the unit inside the model.
        meeting: Where in the unit's forward.
        kind: `"map"` in convolutional units, `"token"` in units without a convolution.
        last: True for the last addition of its unit.
    """

    name: str
    unit: str
    meeting: Meeting
    kind: str
    last: bool


def find_junctions(model: nn.Module) -> list[Junction]:
    """Every residual addition of the model, in the order in which its modules are written, inner ones first.

    Raises:
        UnsupportedModelError: There is none; the message lists what was looked at.
    """
    found: list[Junction] = []
    looked: dict[str, str] = {}
    for name, module in _inner_first(model, "", set()):
        if not adds_in_python(module):
            continue
        try:
            met = meetings(module)
        except UNTRACEABLE as error:
            looked.setdefault(type(module).__name__, f"cannot be traced ({str(error).splitlines()[0][:80]})")
            continue
        kind = kind_of(module)
        for number, meeting in enumerate(met):
            last = number == len(met) - 1
            suffix = "" if last else (":attention" if kind == "token" and len(met) == 2 else f":{number + 1}")
            found.append(Junction(name + suffix, name, meeting, kind, last))
        if not met:
            looked.setdefault(type(module).__name__, "adds, but past no layers")
    if not found:
        seen = "; ".join(f"{kind}: {why}" for kind, why in looked.items()) or "no module of it adds two tensors"
        raise UnsupportedModelError(
            f"Expected a network with residual connections, but found none in {type(model).__name__}: {seen}. "
            "Heads sit where a shortcut is added to a branch; write each such addition in the forward of a submodule."
        )
    return found


def _inner_first(module: nn.Module, name: str, seen: set[int]) -> Iterator[tuple[str, nn.Module]]:
    if id(module) in seen:
        return
    seen.add(id(module))
    for child, inner in module.named_children():
        yield from _inner_first(inner, f"{name}.{child}".lstrip("."), seen)
    yield name, module


def kind_of(unit: nn.Module) -> str:
    """`"map"` for a unit with convolutions, `"token"` for one without."""
    return "map" if any(isinstance(m, nn.modules.conv._ConvNd) for m in unit.modules()) else "token"


def graft(model: nn.Module, junctions: Iterable[Junction], join: Join) -> None:
    """Route the additions of these junctions through `join`.

    Args:
        model: Changed in place; `ungraft` undoes it.
        junctions: From `find_junctions`.
        join: Called with a junction's name, shortcut, branch and the masks that the unit was called with, by name.
    """
    for unit, joined in _by_unit(model, junctions):
        _rewrite(unit, joined, {j.meeting.addition: (_JOIN, (j.name,)) for j in joined})
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
    for unit, joined in _by_unit(model, joins):
        calls: dict[str, tuple[str, tuple[str, ...]]] = {}
        for junction in joined:
            child = "_".join([_CHILD, *junction.name.split(":")[1:]])
            if hasattr(unit, child):
                raise UnsupportedModelError(f"{junction.unit} has an attribute {child!r} of its own; rename it.")
            unit.add_module(child, joins[junction])
            calls[junction.meeting.addition] = (child, ())
            planted[junction.name] = f"{junction.unit}.{child}" if junction.unit else child
        _rewrite(unit, joined, calls)
    return planted


def closing_norm(model: nn.Module, junction: Junction) -> nn.modules.batchnorm._BatchNorm | None:
    """The batch norm with scale and shift that ends the shortcut of a junction and is read by nothing else, or None."""
    unit = model.get_submodule(junction.unit)
    graph = trace_unit(unit, training=False)
    node = next(node for node in graph.nodes if node.name == junction.meeting.shortcut)
    if node.op != "call_module" or [user.name for user in node.users] != [junction.meeting.addition]:
        return None
    end = unit.get_submodule(str(node.target))
    while isinstance(end, nn.Sequential) and len(end):
        end = end[-1]
    # A subclass may do more than its affine map, e.g. an activation after it.
    plain = type(end) in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
    return end if plain and isinstance(end, nn.modules.batchnorm._BatchNorm) and end.affine else None


def _by_unit(model: nn.Module, junctions: Iterable[Junction]) -> list[tuple[nn.Module, list[Junction]]]:
    """Units of the model and the junctions in each."""
    by_unit: dict[str, list[Junction]] = {}
    for junction in junctions:
        by_unit.setdefault(junction.unit, []).append(junction)
    return [(model.get_submodule(name), joined) for name, joined in by_unit.items()]


def _rewrite(unit: nn.Module, joined: list[Junction], calls: Mapping[str, tuple[str, tuple[str, ...]]]) -> None:
    """Give a unit a class derived from its own, in which these calls take the place of its additions."""
    try:
        codes = {training: _rewritten(trace_unit(unit, training), joined, calls) for training in (True, False)}
    except UNTRACEABLE as error:
        raise UnsupportedModelError(
            f"{joined[0].unit} cannot be rewritten ({str(error).splitlines()[0][:80]}); leave it out with where=[...]."
        ) from error
    kind = type(unit)
    forward = _compiled(kind, codes[False])
    if codes[True][0] != codes[False][0]:  # the unit does something else in training
        forward = _by_mode(_compiled(kind, codes[True]), forward)
    recipe = Recipe(kind, _rewrite, (joined, calls), [GUEST, *(target for target, _ in calls.values())])
    unit.__class__ = recipe.make(forward=forward, _mhex_original=kind)


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


Code = tuple[str, Mapping[str, Any]]


def _rewritten(graph: fx.Graph, joined: list[Junction], calls: Mapping[str, tuple[str, tuple[str, ...]]]) -> Code:
    """Source of the forward with its additions replaced by calls (attribute, first arguments), and its names."""
    nodes = {node.name: node for node in graph.nodes}
    masks = {str(n.target): n for n in graph.nodes if n.op == "placeholder" and n.target in MASKS}
    for junction in joined:
        meeting = junction.meeting
        addition = nodes.get(meeting.addition)
        if addition is None or meeting.shortcut not in nodes or meeting.branch not in nodes:
            raise UnsupportedModelError(
                f"{junction.unit} adds its shortcut elsewhere in training than in evaluation, so no head fits there."
            )
        with graph.inserting_before(addition):
            target, first = calls[meeting.addition]
            call = graph.call_module(target, (*first, nodes[meeting.shortcut], nodes[meeting.branch], masks))
        addition.replace_all_uses_with(call)
        graph.erase_node(addition)
        nodes[meeting.addition] = call  # a later shortcut may be this very sum
    code = graph.python_code("self")
    return re.sub(rf"\b{EXTRA} = (\w+)", r"**\1", code.src), code.globals


def _compiled(kind: type[nn.Module], code: Code) -> Callable[..., Any]:
    source, names = code
    space = dict(names)
    place = f"<mhex forward of {kind.__name__} {id(space)}>"
    linecache.cache[place] = (len(source), None, source.splitlines(True), place)  # so that tracebacks show it
    exec(compile(source, place, "exec"), space)
    forward: Callable[..., Any] = space["forward"]
    forward.__module__ = kind.__module__
    return forward


def _by_mode(training: Callable[..., Any], evaluation: Callable[..., Any]) -> Callable[..., Any]:
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return (training if self.training else evaluation)(self, *args, **kwargs)

    return forward
