"""Reading weights: safetensors only, and only if every key fits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from mhex._files import misfit_of
from mhex.errors import ArgumentError

SCALE = ".int8_scale"  # what the name of a tensor's scales ends with
_REACH = 127


def pack(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Matrices and kernels as int8 with a scale for each output (their first axis), and everything else as it is.

    The error of a weight is at most half a step, 1/254 of the largest weight of its row.

    Args:
        state: Tensors by name.

    Returns:
        The same names, and beside each packed tensor (O, ...) its scales (O,) under `NAME.int8_scale`.
    """
    packed: dict[str, Tensor] = {}
    for name, value in state.items():
        if not value.is_floating_point() or value.dim() < 2:
            packed[name] = value
        else:
            rows = value.detach().float().flatten(1)
            scale = (rows.abs().amax(1) / _REACH).clamp_min(torch.finfo(torch.float32).tiny)
            packed[name] = (rows / scale[:, None]).round().to(torch.int8).view_as(value)
            packed[name + SCALE] = scale
    return packed


def unpack(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What `pack` packed, as float32; tensors of other files come back as they are."""
    found = {name: value for name, value in state.items() if not name.endswith(SCALE)}
    for name, scale in state.items():
        if name.endswith(SCALE):
            own = name.removesuffix(SCALE)
            if own not in found or scale.shape != found[own].shape[:1] or found[own].dim() < 2:
                raise ArgumentError(
                    f"Expected packed weights with one scale for each of their rows, but {own!r} and its scales do not "
                    "go together: the file is damaged; make it again."
                )
            rows = found[own].float()
            found[own] = rows * scale.view(-1, *[1] * (rows.dim() - 1))
    return found


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file.

    Args:
        path: The file. What counts is its content, not its suffix.

    Returns:
        Tensors by name, in the precision they were stored in; those that were packed into eight bits in float32.

    Raises:
        ArgumentError: There is no such file, or it is not safetensors; pickles are never opened.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if path.is_dir():
        raise ArgumentError(f"Expected a safetensors file, but {path} is a folder.")
    if not path.is_file():
        raise ArgumentError(f"Expected a safetensors file at {path}, but there is none; check the path.")
    try:
        with path.open("rb") as file:
            start = file.read(8)
        return unpack(load_file(path))
    except SafetensorError as error:
        raise ArgumentError(
            f"Expected weights as safetensors, but {path} is {_kind(start)}; convert them once, where you trust their "
            "source, with safetensors.torch.save_file(model.state_dict(), 'weights.safetensors')."
        ) from error
    except OSError as error:
        raise ArgumentError(f"The weights {path} cannot be read: {error.strerror or error}.") from error


def fill(model: nn.Module, weights: dict[str, Tensor], source: str) -> None:
    """Load weights into a model, strictly and in the model's own precision, and put it into evaluation mode.

    Args:
        model: What is filled.
        weights: Tensors by name.
        source: Where they come from, for the message.

    Raises:
        ArgumentError: A key is missing, not expected or of another shape; the message names some.
    """
    if problems := misfit_of(model, weights):
        raise ArgumentError(
            f"The weights {source} do not fit {type(model).__name__}: {problems}. Take weights that were saved from "
            "the same architecture, with the same arguments and image size."
        )
    model.load_state_dict(weights)
    model.eval()


def _kind(start: bytes) -> str:
    """What a file that is not safetensors seems to be, by its first bytes."""
    if not start:
        return "an empty file"
    if start.startswith(b"PK\x03\x04") or start.startswith(b"\x80"):
        return "a pickle, which can run code when it is opened"
    return "not safetensors, or damaged"
