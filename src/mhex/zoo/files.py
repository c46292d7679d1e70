"""Weights of a model: safetensors only, and only if every key fits."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from mhex._files import misfit_of
from mhex.errors import ArgumentError

# What the makers of networks raise when they cannot use an argument; of all these kinds, in different places.
FAILURES = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
SCALE = ".int8_scale"  # ending of the name of a tensor's scales
_REACH = 127  # the largest number of eight bits with a sign


def pack(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Pack matrices and kernels as int8 with a scale for each output (their first axis).

    Beside each packed tensor (O, ...) are its scales (O,) under `NAME.int8_scale`. The error of a weight is at most
    half a step, 1/254 of the largest weight of its row.
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
    """Undo `pack`, in float32; tensors that were not packed come back as they are."""
    tensors = {name: value for name, value in state.items() if not name.endswith(SCALE)}
    for name in (name for name in state if name.endswith(SCALE)):
        scale, owner = state[name], name.removesuffix(SCALE)
        rows = tensors.get(owner)
        if rows is None or scale.shape != rows.shape[:1] or rows.dim() < 2:
            raise ArgumentError(
                f"Expected packed weights with one scale for each of their rows, but {owner!r} and its scales do not "
                "go together: the file is damaged; make it again."
            )
        tensors[owner] = rows.float() * scale.view(-1, *[1] * (rows.dim() - 1))
    return tensors


def read_weights(path: Path) -> dict[str, Tensor]:
    """Tensors of a safetensors file by name, in the precision they were stored in; packed tensors in float32.

    The content of the file counts, not its suffix. Pickles are never opened.
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
        pickled = start.startswith((b"PK\x03\x04", b"\x80"))
        kind = "a pickle, which can run code when it is opened" if pickled else "not safetensors, or damaged"
        kind = kind if start else "an empty file"
        raise ArgumentError(
            f"Expected weights as safetensors, but {path} is {kind}; convert them once, where you trust their "
            "source, with safetensors.torch.save_file(model.state_dict(), 'weights.safetensors')."
        ) from error
    except OSError as error:
        raise ArgumentError(f"The weights {path} cannot be read: {error.strerror or error}.") from error


def fill(model: nn.Module, weights: dict[str, Tensor], source: str) -> None:
    """Load weights strictly, in the model's own precision, and put it into evaluation mode; errors name `source`."""
    if problems := misfit_of(model, weights):
        raise ArgumentError(
            f"The weights {source} do not fit {type(model).__name__}: {problems}. Take weights that were saved from "
            "the same architecture, with the same arguments and image size."
        )
    model.load_state_dict(weights)
    model.eval()


def in_one_line(error: Exception) -> str:
    """The message of an error of another library, in a line that ends with a full stop."""
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason given")
    return f"{type(error).__name__}: {line.rstrip('.')}."
