"""A model with everything needed to use it: what `mhex.load` returns."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from mhex.errors import ArgumentTypeError


@dataclass(frozen=True)
class Bundle:
    """A model, its preprocessing and its names. `mhex.explain` takes it in place of a model.

    Attributes:
        name: As given to `mhex.load`.
        model: In evaluation mode, on the CPU.
        preprocess: From a PIL image to a tensor (C, H, W); None for text.
        tokenizer: From strings to model inputs; None for images.
        class_names: In the order of the outputs; None if unknown.
        card: Data, recipe, accuracy, licence; empty if the model has none.
    """

    name: str
    model: nn.Module = field(repr=False)
    preprocess: Callable[[Any], Tensor] | None = None
    tokenizer: Callable[..., Mapping[str, Any]] | None = field(default=None, repr=False)
    class_names: Sequence[str] | None = field(default=None, repr=False)
    card: Mapping[str, Any] = field(default_factory=dict, repr=False)


def as_bundle(model: Any) -> Bundle:
    """A bundle as it is, or a bare model as a bundle without a name."""
    if isinstance(model, Bundle):
        return model
    if not isinstance(model, nn.Module):
        hint = "give its module()" if isinstance(model, torch.export.ExportedProgram) else "wrap it in a module"
        raise ArgumentTypeError(
            f"Expected a torch.nn.Module or a bundle from mhex.load, but got {type(model).__name__}"
            f"{f'; {hint}' if callable(model) else ''}."
        )
    return Bundle("", model)
