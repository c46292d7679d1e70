"""Calling the model: an error of its own becomes a sentence that says whose it is and what to do."""

from __future__ import annotations

import inspect
from collections.abc import Container
from typing import Any

import torch
from torch import nn

from mhex.capture.batch import Batch
from mhex.capture.outputs import SECTION
from mhex.errors import MhexError, UnsupportedModelError

# What a model raises that is called in another way than it is made for; any other error passes.
_OF_THE_MODEL = (AssertionError, AttributeError, LookupError, NotImplementedError, RuntimeError, TypeError, ValueError)


def call(model: nn.Module, batch: Batch) -> Any:
    """What the model returns for a batch.

    Args:
        model: The unwrapped module.
        batch: Checked inputs.

    Raises:
        UnsupportedModelError: The model itself fails. Running out of memory and faults of a device pass as they are.
    """
    try:
        return model(*batch.args, **batch.kwargs)
    except (MhexError, torch.OutOfMemoryError, torch.AcceleratorError):
        raise
    except _OF_THE_MODEL as error:
        raise UnsupportedModelError(_failure(model, batch, error)) from error


def _failure(model: nn.Module, batch: Batch, error: Exception) -> str:
    words = next(iter(str(error).splitlines()), "").strip().rstrip(".")[:200]
    cause = f"{type(error).__name__}: {words}" if words else type(error).__name__
    given = ", ".join([*(["an image tensor"] if batch.modality == "image" else []), *batch.kwargs])
    return f"{name_of_class(model)} itself fails when it is called with {given} ({cause}); {_remedy(model)}."


def _remedy(model: nn.Module) -> str:
    """What to do, by what the model takes."""
    names: Container[str] = (
        () if isinstance(model, torch.jit.ScriptModule) else inspect.signature(type(model).forward).parameters
    )
    if "input_ids" in names and "pixel_values" in names:
        return (
            "it reads images and texts together: wrap it in a module that holds the one fixed, takes the other and "
            f"returns scores of shape (batch, classes), see {SECTION}"
        )
    if "decoder_input_ids" in names:
        return (
            "it generates text: wrap it in a module that returns the scores of one next word, of shape (batch, words), "
            f"see {SECTION}"
        )
    return "check that it takes these inputs by itself, and batches of any size, a single sample too"


def name_of_class(model: nn.Module) -> str:
    """The model's class, for messages; that of TorchScript is the class that it was made from."""
    if isinstance(model, torch.jit.ScriptModule):
        return f"TorchScript {getattr(model, 'original_name', '')}".strip()
    return type(model).__name__
