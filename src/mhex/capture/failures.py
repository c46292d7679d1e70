"""Forward passes that fail: whether the model itself cannot take its inputs, or what is done around it went wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from mhex.capture.batch import Batch
from mhex.capture.guard import untouched
from mhex.errors import ArgumentError, MhexError

# What layers raise for values, shapes and types that they cannot take. Errors of a class of the user's own pass.
_ERRORS = (RuntimeError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, AssertionError)


@contextmanager
def model_failures(model: nn.Module, batch: Batch) -> Iterator[None]:
    """While open, an error that the bare model raises for the batch too becomes one that says so.

    Any other error is left as it is, and so is running out of memory.

    Args:
        model: The unwrapped module.
        batch: What it is called with.

    Raises:
        ArgumentError: The model cannot be called with the batch.
    """
    try:
        yield
    except _ERRORS as error:
        if not isinstance(error, (MhexError, torch.OutOfMemoryError)):
            _check_bare_pass(model, batch)
        raise


def _check_bare_pass(model: nn.Module, batch: Batch) -> None:
    if batch.modality == "image":
        batch = batch.with_input(batch.pixels.clone())  # the model may write into it
    try:
        with untouched(model), torch.no_grad():
            model(*batch.args, **batch.kwargs)
    except _ERRORS as error:
        if isinstance(error, (MhexError, torch.OutOfMemoryError)):
            raise
        lines = str(error).strip().splitlines()
        reason = lines[0].rstrip(".") if lines else type(error).__name__
        raise ArgumentError(
            f"Expected inputs that {type(model).__name__} can be called with, but its forward pass fails on "
            f"{_words(batch)}: {reason}."
        ) from error


def _words(batch: Batch) -> str:
    named = {"images": batch.pixels} if batch.modality == "image" else {}
    shapes = {name: tuple(x.shape) for name, x in {**named, **batch.kwargs}.items() if isinstance(x, Tensor)}
    return " and ".join(f"{name} of shape {shape}" for name, shape in shapes.items())
