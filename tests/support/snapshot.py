"""A snapshot of everything about a model and the process that an explanation must leave alone."""

from __future__ import annotations

import functools
import random
import types
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

_TABLES = ("_parameters", "_buffers", "_modules")


class Snapshot:
    """Taken before a call; `check` compares afterwards and names what changed.

    Tensors and objects are compared by identity and by value: it keeps references to all of them, so that an `id`
    cannot be given to another object meanwhile.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.attributes = {name: dict(module.__dict__) for name, module in model.named_modules()}
        self.contents = {name: _contents(module) for name, module in model.named_modules()}
        self.values = {name: tensor.detach().clone() for name, tensor in _state(model)}
        self.parameters = {
            name: (p, p.requires_grad, p.grad, None if p.grad is None else p.grad.clone(), p.grad_fn)
            for name, p in model.named_parameters(remove_duplicate=False)
        }
        self.configurations = {id(c): (c, dict(c.__dict__)) for c in _configurations(model)}
        self.reachable = reachable_tensors(model)
        self.process = _process_state()

    def check(self) -> None:
        """Assert that nothing changed."""
        modules = dict(self.model.named_modules())
        assert modules.keys() == self.attributes.keys(), "submodules came or went"
        for name, module in modules.items():
            _check_attributes(name, self.attributes[name], module.__dict__)
            _check_contents(name, self.contents[name], _contents(module))
        for name, tensor in _state(self.model):
            assert torch.equal(tensor, self.values[name]), f"{name} has other values than before"
        for name, p in self.model.named_parameters(remove_duplicate=False):
            _check_parameter(name, p, *self.parameters[name])
        for config, before in self.configurations.values():
            assert dict(config.__dict__) == before, f"the configuration {type(config).__name__} changed"
        new = reachable_tensors(self.model).keys() - self.reachable.keys()
        assert not new, f"{len(new)} tensors can be reached from the model that were not there before"
        after = _process_state()
        for name, value in self.process.items():
            assert _equal(value, after[name]), f"{name} is not as before"


def hooks_of(module: nn.Module) -> dict[str, dict[Any, Any]]:
    """All hook tables of a module."""
    return {name: dict(value) for name, value in module.__dict__.items() if "hooks" in name and isinstance(value, dict)}


def reachable_tensors(root: Any) -> dict[int, Tensor]:
    """Every tensor that can be reached through attributes, containers, closures and bound methods."""
    found: dict[int, Tensor] = {}
    seen: set[int] = set()
    copies: list[Any] = []  # kept alive: the id of a dropped one could be given to another, which would be passed over
    todo: list[Any] = [root]
    while todo:
        thing = todo.pop()
        if id(thing) in seen or isinstance(thing, (type, types.ModuleType, str, bytes, int, float, torch.dtype)):
            continue
        seen.add(id(thing))
        if isinstance(thing, Tensor):
            found[id(thing)] = thing
            todo.append(thing.grad if thing.is_leaf else None)
            todo.extend(thing.__dict__.values())
        elif isinstance(thing, dict):
            todo.extend(thing.values())
        elif isinstance(thing, (list, tuple, set, frozenset)):
            todo.extend(thing)
        elif isinstance(thing, types.MethodType):
            copies.append(thing)  # made anew each time a method is asked for
            todo.extend((thing.__self__, thing.__func__))
        elif isinstance(thing, functools.partial):
            copies.append((thing.func, thing.args, thing.keywords))
            todo.extend(copies[-1])
        elif isinstance(thing, types.FunctionType):
            todo.extend(cell.cell_contents for cell in thing.__closure__ or () if _is_filled(cell))
            todo.extend((thing.__defaults__, thing.__kwdefaults__, thing.__dict__))
        elif hasattr(thing, "__dict__"):
            copies.append(dict(vars(thing)))
            todo.append(copies[-1])
    return found


def _is_filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # a name that is bound later
        return False


def _state(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [*model.named_parameters(), *model.named_buffers()]


def _contents(module: nn.Module) -> dict[str, dict[Any, Any]]:
    return {**hooks_of(module), **{name: dict(module.__dict__[name]) for name in _TABLES}}


def _configurations(model: nn.Module) -> list[Any]:
    found = [m.__dict__["config"] for m in model.modules() if hasattr(m.__dict__.get("config"), "__dict__")]
    return list({id(c): c for c in found}.values())


def _process_state() -> dict[str, Any]:
    return {
        "torch's random generator": torch.get_rng_state(),
        "Python's random generator": random.getstate(),
        "numpy's random generator": np.random.get_state(),
        "the grad mode": torch.is_grad_enabled(),
        "the inference mode": torch.is_inference_mode_enabled(),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
        "the stack of function modes": list(_get_current_function_mode_stack()),
        "the stack of dispatch modes": list(_get_current_dispatch_mode_stack()),
        "the default dtype": torch.get_default_dtype(),
        "the fast path of nn.MultiheadAttention": torch.backends.mha.get_fastpath_enabled(),
        "scaled_dot_product_attention": F.scaled_dot_product_attention,
        "multi_head_attention_forward": F.multi_head_attention_forward,
        "anomaly detection": torch.is_anomaly_enabled(),
        "the number of threads": torch.get_num_threads(),
    }


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return bool(np.array_equal(a, b))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(_equal(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def _check_attributes(name: str, before: dict[str, Any], after: dict[str, Any]) -> None:
    where = name or "the model"
    assert before.keys() == after.keys(), f"{where} has other attributes: {sorted(before.keys() ^ after.keys())}"
    for key, value in before.items():
        # `is` first: equal values of simple types need not be the same object.
        same = after[key] is value or (isinstance(value, (bool, int, float, str, tuple)) and after[key] == value)
        assert same, f"{where}.{key} was {value!r} and is {after[key]!r}"


def _check_contents(name: str, before: dict[str, dict[Any, Any]], after: dict[str, dict[Any, Any]]) -> None:
    for table, entries in before.items():
        kept = list(entries) == list(after[table]) and all(entries[k] is after[table][k] for k in entries)
        assert kept, f"{name or 'the model'}.{table} changed from {list(entries)} to {list(after[table])}"


def _check_parameter(
    name: str, p: Tensor, old: Tensor, required: bool, grad: Tensor | None, values: Tensor | None, grad_fn: Any
) -> None:
    assert p is old, f"{name} is another tensor"
    assert p.requires_grad == required, f"requires_grad of {name} changed"
    assert p.grad is grad, f"{name}.grad is another tensor"
    assert values is None or torch.equal(p.grad, values), f"{name}.grad has other values"
    assert p.grad_fn is grad_fn, f"{name} entered a graph"


def in_use(model: nn.Module) -> nn.Module:
    """Some modules train, some parameters are frozen, some have gradients, and a hook of the user is there."""
    model.train()
    list(model.modules())[1].eval()
    for index, parameter in enumerate(model.parameters()):
        parameter.requires_grad_(index % 3 > 0)
        if index % 4 == 0:
            parameter.grad = torch.full_like(parameter, 0.25)
    next(iter(model.children())).register_forward_hook(lambda module, args, output: None)
    return model
