"""An inventory of a model: its modules and parameters, and what was found out about it, made anew when it changes."""

from collections.abc import Callable, Hashable
from itertools import chain
from operator import is_
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from mhex.capture.precision import HALF

T = TypeVar("T")
_INVENTORIES: WeakKeyDictionary[nn.Module, "Inventory"] = WeakKeyDictionary()
_MOST_MODELS, _MOST_FACTS = 16, 64
_PLAIN = (str, int, float, bool, type(None))
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")  # tables of a module
_ADDRESSED = (nn.Parameter, Tensor)
_SWITCHES = frozenset(("training", "fused_attn", "grad_checkpointing"))  # what is swapped while a model is guarded


class Inventory:
    """Modules and parameters of a model, and facts about it that hold until one of them is another."""

    def __init__(self, model: nn.Module) -> None:
        everything, names = _walk(model)
        self.below = everything[1:]  # without the model itself, so that the inventory dies with the model
        self.names = names  # that modules have in the one around them
        plain = [m for m in everything if not isinstance(m, torch.jit.ScriptModule)]
        self.has_scripts = len(plain) < len(everything)
        self.parameters = [p for m in everything for p in m._parameters.values() if p is not None]
        self.keys = frozenset(map(id, chain(everything, self.parameters)))
        self.device = self.parameters[0].device if self.parameters else torch.device("cpu")
        self.is_half = any(p.dtype in HALF for p in self.parameters)
        self.norms = [m for m in self.below if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        self._tables: list[dict[str, Any]] = [t for m in plain for t in (m._modules, m._parameters, m._buffers)]
        self._filled = list(filter(None, self._tables))  # of all the others the length says enough
        self.hooks = [getattr(module, name) for module in self.below for name in HOOKS]
        # Weights of other kinds may have no address, or lie in several places.
        buffers = [b for m in everything for b in m._buffers.values() if type(b) is Tensor]
        self._addressed = [x for x in (*self.parameters, *buffers) if type(x) in _ADDRESSED and not x.is_meta]
        # Plain attributes of modules other than torch's own, which the model itself may go by.
        self._owners = [vars(m) for m in self.below if not type(m).__module__.startswith("torch.nn.")]
        pairs = [
            (owner, name)
            for owner in self._owners
            for name in owner
            if type(owner[name]) in _PLAIN and name not in _SWITCHES
        ]
        self._attributes = [owner for owner, _ in pairs], [name for _, name in pairs]
        self._values = [owner[name] for owner, name in pairs]
        self._facts: dict[Hashable, Any] = {}
        self._signature = self._sign(model)

    def modules(self, model: nn.Module) -> list[nn.Module]:
        """All modules, the model itself first."""
        return [model, *self.below]

    def having(self, name: str, model: nn.Module) -> list[nn.Module]:
        """The modules that have an attribute of this name of their own."""
        places = self.fact(("having", name), lambda: [k for k, m in enumerate(self.modules(model)) if name in vars(m)])
        modules = self.modules(model)
        return [modules[place] for place in places]

    def fact(self, key: Hashable, find: Callable[[], T], keep: Callable[[T], bool] = lambda _: True) -> T:
        """What `find()` returned the first time for this key; it is asked again where `keep` says no."""
        facts = self._facts
        if key in facts:
            return cast(T, facts[key])
        value = find()
        if keep(value):  # another thread may be looking into the table that is full
            self._facts = {**({} if len(facts) >= _MOST_FACTS else facts), key: value}
        return value

    def note(self, key: Hashable) -> None:
        """Remember that something was seen of the model."""
        self.fact(key, lambda: True)

    def knows(self, key: Hashable) -> bool:
        """Whether something was noted, or found out, under this key."""
        return key in self._facts

    def is_current(self, model: nn.Module) -> bool:
        """False if modules were added, replaced or moved, or plain attributes of the model or its parts changed."""
        values = list(map(dict.get, *self._attributes))
        same = all(map(is_, values, self._values))  # hundreds of values, and nearly always the same objects
        same = same or [x if type(x) in _PLAIN else id(x) for x in values] == self._values
        return same and self._signature == self._sign(model)

    def _sign(self, model: nn.Module) -> tuple[Any, ...]:
        return (
            type(model),
            [(name, value) for name, value in vars(model).items() if type(value) in _PLAIN and name not in _SWITCHES],
            id(vars(model).get("forward")),
            list(map(type, self.below)),
            list(map(len, self._tables)),
            list(map(id, chain.from_iterable(map(dict.values, self._filled)))),
            list(map(Tensor.data_ptr, self._addressed)),
            list(map(len, self._owners)),
        )


def inventory_of(model: nn.Module, check: bool = True) -> Inventory:
    """The inventory of a model, from earlier calls if the model is as it was; without a `check`, in any case."""
    inventory = _INVENTORIES.get(model)
    if inventory is None or (check and not inventory.is_current(model)):
        if len(_INVENTORIES) >= _MOST_MODELS:  # parts that refer to their model keep it and its inventory alive
            _INVENTORIES.clear()
        inventory = _INVENTORIES[model] = Inventory(model)
    return inventory


def _walk(model: nn.Module) -> tuple[list[nn.Module], set[str]]:
    """What `model.modules()` gives, in less time, and all names that modules have in the one around them."""
    modules: dict[nn.Module, None] = {}
    names: set[str] = set()
    waiting = [model]
    while waiting:
        module = waiting.pop()
        if module not in modules:
            modules[module] = None
            if children := module._modules:
                names.update(children.keys())
                waiting += [child for child in reversed(list(children.values())) if child is not None]
    return list(modules), names
