"""Copies and pickles of units whose class was made here.

Such a class exists only in the process that made it. A copy in that process shares it; a pickle holds the way to make
it again from the unit's own class, and loading it traces the unit once more.
"""

from __future__ import annotations

import copyreg
from collections.abc import Callable, Collection
from typing import Any

from torch import nn


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
