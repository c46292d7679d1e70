"""Forward passes that fail: whether the model itself cannot take its inputs, or what is done around it went wrong."""

from __future__ import annotations

import inspect
from collections.abc import Container, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from mhex.capture.batch import Batch
from mhex.capture.guard import untouched
from mhex.capture.outputs import SECTION
from mhex.errors import MhexError, UnsupportedModelError

# What layers raise for values, shapes and types that they cannot take. Errors of a class of the user's own pass.
_ERRORS = (RuntimeError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, AssertionError)
_PASSING = (MhexError, torch.OutOfMemoryError, torch.AcceleratorError)  # these say themselves what is wrong


@contextmanager
def model_failures(model: nn.Module, batch: Batch) -> Iterator[None]:
    """While open, an error that the bare model raises for the batch too becomes one that says so.

    Any other error is left as it is, and so are running out of memory and faults of a device.

    Args:
        model: The unwrapped module.
        batch: What it is called with.

    Raises:
        UnsupportedModelError: The model itself cannot be called with the batch.
    """
    try:
        yield
    except _ERRORS as error:
        if not isinstance(error, _PASSING):
            _check_bare_pass(model, batch)
        raise


def _check_bare_pass(model: nn.Module, batch: Batch) -> None:
    if batch.modality == "image":
        batch = batch.with_input(batch.pixels.clone())  # the model may write into it
    try:
        with untouched(model), torch.no_grad():
            model(*batch.args, **batch.kwargs)
    except _PASSING:
        raise
    except _ERRORS as error:
        words = next(iter(str(error).splitlines()), "").strip().rstrip(".")[:200]
        cause = f"{type(error).__name__}: {words}" if words else type(error).__name__
        raise UnsupportedModelError(
            f"{name_of_class(model)} itself fails when it is called with {_words(batch)} ({cause}); {_remedy(model)}."
        ) from error


def _words(batch: Batch) -> str:
    named = {"images": batch.pixels} if batch.modality == "image" else {}
    shapes = {name: tuple(x.shape) for name, x in {**named, **batch.kwargs}.items() if isinstance(x, Tensor)}
    return " and ".join(f"{name} of shape {shape}" for name, shape in shapes.items())


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
