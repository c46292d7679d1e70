"""What stands around a model: wrappers of torch that are looked through, and the compiled form of what is inside."""

import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import torch
from torch import nn

from mhex.capture.anatomy import GUEST
from mhex.capture.inventory import inventory_of

_PARALLEL = (nn.DataParallel, nn.parallel.DistributedDataParallel)
_COMPILED: WeakSet[nn.Module] = WeakSet()  # wrappers of `torch.compile` that were run here
_LOCK = threading.Lock()


def unwrap(model: nn.Module) -> nn.Module:
    """The module inside `torch.compile`, `DataParallel` and `DistributedDataParallel` wrappers."""
    return _layers(model)[-1]


def _layers(model: nn.Module) -> list[nn.Module]:
    """A model, and what is inside of each wrapper, the bare module last."""
    layers = [model]
    while isinstance(
        inner := getattr(layers[-1], "module" if isinstance(layers[-1], _PARALLEL) else "_orig_mod", None), nn.Module
    ):
        layers.append(inner)
    return layers


def compiled_form(model: nn.Module) -> Callable[..., Any] | None:
    """What `torch.compile(model)` or `model.compile()` runs in place of the bare module; None if it is not compiled.

    It is asked for before the model is guarded, which takes compiled calls away. Heads note what they see in each
    call, and wrappers inside of `torch.compile` share the work among devices: both run as they are.
    """
    *wrappers, bare = _layers(model)
    if GUEST in inventory_of(bare, check=False).names:
        return None
    if wrappers and isinstance(wrappers[-1], torch._dynamo.OptimizedModule):
        with _LOCK:
            _COMPILED.add(wrappers[-1])
        forward: Callable[..., Any] = wrappers[-1].forward
        return forward
    return vars(bare).get("_compiled_call_impl")


def entrances(model: nn.Module) -> list[nn.Module]:
    """The wrappers of `torch.compile` by which a bare module was run here, so that other threads may use them too."""
    if not _COMPILED:
        return []
    with _LOCK:
        return [wrapper for wrapper in _COMPILED if wrapper._orig_mod is model]
