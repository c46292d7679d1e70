"""Layers given new random weights, and all of a model put back exactly, also after an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


def layers_with_weights(model: nn.Module) -> list[nn.Module]:
    """Modules with parameters of their own, in the order in which the model holds them: from input to output."""
    return [m for m in model.modules() if any(p is not None for p in m._parameters.values())]


@contextmanager
def restored(model: nn.Module) -> Iterator[None]:
    """On leaving, every parameter and buffer is the object that it was, and holds what it held."""
    tables = [table for m in model.modules() for table in (m._parameters, m._buffers)]
    before = [(table, dict(table)) for table in tables]
    tensors = {id(t): t for _, entries in before for t in entries.values() if t is not None}
    copies = {number: tensor.detach().clone() for number, tensor in tensors.items()}
    try:
        yield
    finally:
        with torch.no_grad():
            for table, entries in before:
                table.clear()
                table.update(entries)  # type: ignore[arg-type]
            for number, tensor in tensors.items():
                tensor.copy_(copies[number])


def randomize(layer: nn.Module, seed: int) -> None:
    """Give a layer's own parameters new random values, in place.

    By the layer's own initialiser, `reset_parameters`, where it has one. Else, as for class tokens and position
    embeddings that a model holds itself, the numbers of each parameter are shuffled.

    Args:
        layer: Whose parameters are renewed; layers inside of it are left alone, unless its initialiser renews them.
        seed: Of the random numbers; the global generators are left alone.
    """
    own = [p for p in layer._parameters.values() if p is not None]
    devices = sorted({p.device.index for p in own if p.device.type == "cuda"})
    with torch.random.fork_rng(devices=devices), torch.no_grad():
        torch.manual_seed(seed)
        initialise = _initialiser(layer)
        if initialise is not None:
            initialise()
            return
        for parameter in own:
            _shuffle(parameter)


def _initialiser(layer: nn.Module) -> Callable[[], object] | None:
    for name in ("reset_parameters", "_reset_parameters"):  # the second is that of torch's attention
        found = getattr(layer, name, None)
        if callable(found):
            return found  # type: ignore[no-any-return]
    return None


def _shuffle(parameter: Tensor) -> None:
    order = torch.randperm(parameter.numel()).to(parameter.device)
    parameter.copy_(parameter.flatten()[order].view_as(parameter))
