"""Whether weights fit a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor, nn


def misfit_of(model: nn.Module, weights: Mapping[str, Tensor]) -> str:
    """What does not fit of weights for a model, in words; empty if everything does."""
    own = model.state_dict()
    misshapen = [
        f"{name} is {tuple(weights[name].shape)} instead of {tuple(tensor.shape)}"
        for name, tensor in own.items()
        if name in weights and weights[name].shape != tensor.shape
    ]
    return misfit(
        (name for name in own if name not in weights), (name for name in weights if name not in own), misshapen
    )


def misfit(missing: Iterable[str], extra: Iterable[str], misshapen: Iterable[str] = ()) -> str:
    """What does not fit, in words; empty if everything does."""
    groups = (("missing keys", list(missing)), ("unexpected keys", list(extra)), ("wrong shapes", list(misshapen)))
    return "; ".join(f"{len(names)} {what} ({_some(names)})" for what, names in groups if names)


def _some(names: list[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")
