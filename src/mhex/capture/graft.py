"""Putting a module where residual branches meet, inside a model whose code stays as it is.

A unit's own forward is traced, its residual addition becomes a call of `join`, and the unit gets a class derived from
its own whose forward is that code. Everything else (children, names, parameters, hooks) stays; `ungraft` gives the
class back. Nothing is kept between calls here: what a unit computes depends on its arguments and weights alone, so
threads, replicas and recomputed activations cannot mix.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx, nn

from mhex.capture.guest import Guest
from mhex.capture.residual import EXTRA, UNTRACEABLE, Meeting, adds_in_python, meetings, trace_unit
from mhex.errors import UnsupportedModelError

# Called as join(name, shortcut, branch, mask); returns what takes the place of the sum.
Join = Callable[[str, Tensor, Tensor, Tensor | None], Tensor]
_JOIN = "_mhex_join"
_MASKS = ("attention_mask", "attn_mask")


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
    """Every residual addition of the model, in the order in which its modules are written.

    Raises:
        UnsupportedModelError: There is none; the message lists what was looked at.
    """
    found: list[Junction] = []
    looked: dict[str, str] = {}
    for name, module in model.named_modules():
        if not adds_in_python(module):
            continue
        try:
            met = meetings(module)
        except UNTRACEABLE as error:
            looked.setdefault(type(module).__name__, f"cannot be traced ({str(error).splitlines()[0][:80]})")
            continue
        kind = "map" if any(isinstance(m, nn.modules.conv._ConvNd) for m in module.modules()) else "token"
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


def graft(model: nn.Module, junctions: Iterable[Junction], join: Join) -> None:
    """Route the additions of these junctions through `join`.

    Args:
        model: Changed in place; `ungraft` undoes it.
        junctions: From `find_junctions`.
        join: Called with a junction's name, shortcut, branch and the attention mask that the unit was called with.
    """
    by_unit: dict[str, list[Junction]] = {}
    for junction in junctions:
        by_unit.setdefault(junction.unit, []).append(junction)
    for name, joined in by_unit.items():
        unit = model.get_submodule(name)
        names = {junction.meeting.addition: junction.name for junction in joined}
        codes = {training: _rewritten(trace_unit(unit, training), joined, names) for training in (True, False)}
        kind = type(unit)
        forward = _compiled(kind, codes[False])
        if codes[True][0] != codes[False][0]:  # the unit does something else in training
            forward = _by_mode(_compiled(kind, codes[True]), forward)
        unit.__dict__[_JOIN] = join
        own = {"forward": forward, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
        unit.__class__ = type(kind.__name__, (kind,), {**own, "_mhex_original": kind})


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


def _rewritten(graph: fx.Graph, joined: list[Junction], names: Mapping[str, str]) -> Code:
    """Source of the forward with its additions replaced, and the names it refers to."""
    nodes = {node.name: node for node in graph.nodes}
    mask = next((n for n in graph.nodes if n.op == "placeholder" and n.target in _MASKS), None)
    for junction in joined:
        meeting = junction.meeting
        addition = nodes.get(meeting.addition)
        if addition is None or meeting.shortcut not in nodes or meeting.branch not in nodes:
            raise UnsupportedModelError(
                f"{junction.unit} adds its shortcut elsewhere in training than in evaluation, so no head fits there."
            )
        with graph.inserting_before(addition):
            call = graph.call_module(
                _JOIN, (names[meeting.addition], nodes[meeting.shortcut], nodes[meeting.branch], mask)
            )
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
