"""How a model is read: known families, and a generic route for all others.

An adapter is a function from a model to its `Anatomy`, or None if the model is of another family. To add a family,
write such a function and put it into `ADAPTERS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

from mhex.capture.adapters.families import (
    cnn_anatomy,
    swin_anatomy,
    text_anatomy,
    timm_anatomy,
    torchvision_anatomy,
    vision_anatomy,
)
from mhex.capture.adapters.generic import generic_anatomy
from mhex.capture.anatomy import Anatomy, guests
from mhex.capture.batch import Batch
from mhex.capture.guard import name_of_class
from mhex.errors import ArgumentError

ADAPTERS: tuple[Callable[[nn.Module], Anatomy | None], ...] = (
    *(timm_anatomy, vision_anatomy, text_anatomy, torchvision_anatomy),
    *(swin_anatomy, cnn_anatomy),
)
# Modules of activations other than ReLU; those of Hugging Face have names of their own.
_SMOOTH = frozenset(
    (
        *("GELU", "SiLU", "ELU", "SELU", "CELU", "LeakyReLU", "PReLU", "Mish", "Softplus", "Hardswish", "Tanh", "GLU"),
        *("LSTM", "GRU", "LSTMCell", "GRUCell", "PytorchGELUTanh", "GELUTanh"),
        *("GELUActivation", "NewGELUActivation", "FastGELUActivation", "QuickGELUActivation"),
    )
)
_QUANTISED = ("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized")


def known_anatomy(model: nn.Module) -> Anatomy | None:
    """Anatomy of a model of a known family, read from its modules alone; None for other models."""
    return next((anatomy for adapter in ADAPTERS if (anatomy := adapter(model)) is not None), None)


def find_anatomy(model: nn.Module, batch: Batch, attention: bool = True) -> Anatomy:
    """Anatomy of any model; one of an unknown family is watched in a forward pass of the first sample.

    Args:
        model: The unwrapped module.
        batch: Checked inputs.
        attention: Whether attention will be read; if not, an unknown model keeps its own kernel in that pass.
    """
    anatomy = known_anatomy(model) or generic_anatomy(model, batch, attention)
    if anatomy.modality != batch.modality:
        raise ArgumentError(
            f"Expected {anatomy.modality} inputs for this {anatomy.family}, but got {batch.modality} inputs."
        )
    modules = list(model.modules())
    smooth, scripted, quantised = (
        next(filter(None, map(name, modules)), "") for name in (_smooth, _scripted, _quantised)
    )
    return replace(anatomy, heads=len(guests(modules)), activation=smooth, opaque=scripted, cuts_gradient=quantised)


def _smooth(module: nn.Module) -> str:
    """Name of an activation other than ReLU; empty for other modules."""
    if isinstance(module, nn.TransformerEncoderLayer):  # it keeps a function
        name = getattr(module.activation, "__name__", "")
        return "" if name == "relu" else name
    name = type(module).__name__
    return name if name in _SMOOTH else ""


def _scripted(module: nn.Module) -> str:
    """Name of a module of TorchScript; empty for other modules."""
    return name_of_class(module) if isinstance(module, torch.jit.ScriptModule) else ""


def _quantised(module: nn.Module) -> str:
    """Name of a layer that computes in whole numbers; empty for other modules, and for tables of such numbers."""
    kind = type(module)
    integer = kind.__module__.startswith(_QUANTISED) and "Embedding" not in kind.__name__
    return f"quantised layer {kind.__name__}" if integer else ""
