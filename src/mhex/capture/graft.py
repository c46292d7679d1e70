"""Putting a module where residual branches meet, inside a model whose code stays as it is.

A unit's own forward is traced, its residual addition becomes a call of `join`, and the unit gets a class derived from
its own whose forward is that code. Everything else (children, names, parameters, hooks) stays; `ungraft` gives the
class back. Nothing is kept between calls here: what a unit computes depends on its arguments and weights alone, so
threads, replicas and recomputed activations cannot mix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from mhex.capture.guest import GUEST, Guest
from mhex.capture.junctions import Junction
from mhex.capture.pickling import Recipe
from mhex.capture.rewrite import Calls, rewritten
from mhex.errors import UnsupportedModelError

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
