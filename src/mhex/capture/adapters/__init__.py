"""One file per model family, and a generic route for the rest.

An adapter is a function from a model to its `Anatomy`, or None if the model is of another family. To add a family,
write a file with such a function and put it into `ADAPTERS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch import nn

from mhex.capture.adapters import cnn, generic, hf_text, hf_vision, swin, timm_vit, torchvision_vit
from mhex.capture.anatomy import Anatomy
from mhex.capture.batch import Batch
from mhex.capture.guest import guests

ADAPTERS: tuple[Callable[[nn.Module], Anatomy | None], ...] = (
    timm_vit.anatomy,
    hf_vision.anatomy,
    hf_text.anatomy,
    torchvision_vit.anatomy,
    swin.anatomy,
    cnn.anatomy,
)


# Modules of activations other than ReLU; those of Hugging Face have names of their own.
_SMOOTH = frozenset(
    (
        *("GELU", "SiLU", "ELU", "SELU", "CELU", "LeakyReLU", "PReLU", "Mish", "Softplus", "Hardswish", "Tanh", "GLU"),
        *("GELUActivation", "NewGELUActivation", "FastGELUActivation", "QuickGELUActivation", "PytorchGELUTanh"),
    )
)


def known_anatomy(model: nn.Module) -> Anatomy | None:
    """Anatomy of a model of a known family, read from its modules alone; None for other models."""
    return next((found for adapter in ADAPTERS if (found := adapter(model)) is not None), None)


def find_anatomy(model: nn.Module, batch: Batch, attention: bool = True) -> Anatomy:
    """Anatomy of any model; one of an unknown family is watched in a forward pass of the first sample.

    Args:
        model: The unwrapped module.
        batch: Checked inputs.
        attention: Whether attention will be read; if not, an unknown model keeps its own kernel in that pass.
    """
    found = known_anatomy(model) or generic.anatomy(model, batch, attention)
    modules = list(model.modules())
    return replace(found, heads=len(guests(modules)), activation=next(filter(None, map(_smooth, modules)), ""))


def _smooth(module: nn.Module) -> str:
    """Name of an activation other than ReLU; empty for other modules."""
    if isinstance(module, nn.TransformerEncoderLayer):  # it keeps a function
        name = getattr(module.activation, "__name__", "")
        return "" if name == "relu" else name
    name = type(module).__name__
    return name if name in _SMOOTH else ""
