"""What images and texts share: the prepared batch, and how tensors are brought to the model."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mhex._settings import check_that
from mhex.capture import Batch
from mhex.errors import ArgumentError, ArgumentTypeError, CaptureError, some_of

WHOLE_NUMBERS = (
    *(torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
)


@dataclass(frozen=True)
class Prepared:
    """A batch for the model and what is needed to show it. Words and offsets are known of fast tokenizers alone."""

    batch: Batch
    pictures: Any = None  # the PIL images given, or the tensor given
    tokens: list[list[str]] | None = None  # of each text, padding left out
    words: list[list[int | None]] | None = None  # for each token the index of its word, None at special tokens
    texts: list[str] | None = None  # the strings given; None if token ids were
    offsets: list[list[tuple[int, int]]] | None = None  # where each token begins and ends in its string, in characters
    lengths: list[int] | None = None  # how many tokens each text had before it was cut; None if not known
    gaps: tuple[int, ...] = ()  # places of samples that held NaN or infinity, and are zero here
    unchecked: bool = False  # True if whoever runs the model is to look whether the images are finite


def place_of(model: nn.Module) -> tuple[torch.device, torch.dtype]:
    """Device and dtype of the model's weights; a CaptureError if they have no values."""
    floating = next((p for p in model.parameters() if p.is_floating_point()), None)
    if floating is not None and floating.is_meta:
        raise CaptureError("The model's weights are on the meta device, which holds no values; load them first.")
    return (torch.device("cpu"), torch.get_default_dtype()) if floating is None else (floating.device, floating.dtype)


def check_dense(x: Tensor, name: str) -> None:
    """Refuse a tensor whose values are not all there, one beside the other."""
    if x.is_nested or x.layout != torch.strided or x.is_quantized:
        kind = "nested" if x.is_nested else "quantised" if x.is_quantized else str(x.layout).removeprefix("torch.")
        raise ArgumentTypeError(
            f"Expected {name} as a dense tensor, but got a {kind} one; use to_dense() or dequantize()."
        )
    check_that(not x.is_meta, f"{name} with values", "a tensor on the meta device, which has none")


def check_batch(x: Tensor, name: str) -> None:
    """Refuse a tensor that is not dense, or does not fit into memory."""
    check_dense(x, name)
    if x.is_contiguous():
        return
    try:
        # Tensors made by expand claim more than they hold. Memory that nobody writes to is only claimed, too.
        torch.empty(x.shape, dtype=x.dtype, device=x.device)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        shape = tuple(x.shape)
        raise ArgumentError(f"Expected {name} that fit into memory, but got {shape}; give fewer samples.") from error


def not_finite(x: Tensor) -> list[int]:
    """Places of the samples of a tensor (B, ...) that hold NaN or infinity."""
    # A sum is read in one go, and finite if all values are; a sum that overflows is looked at more closely.
    if x.numel() and x.is_floating_point() and x.element_size() > 1 and math.isfinite(float(x.detach().sum())):
        return []
    rows = x if x.dim() else x[None]
    return (~rows.isfinite().reshape(len(rows), -1).all(1)).nonzero()[:, 0].tolist() if rows.numel() else []


def filled(x: Tensor, model: nn.Module) -> tuple[Tensor, tuple[int, ...]]:
    """Samples (B, ...) with zeros in those that hold NaN or infinity in the model's precision, and their places."""
    places = not_finite(x.to(*place_of(model)))
    if places:
        x = x.clone()
        x[places] = 0
    return x, tuple(places)


def finite(x: Tensor, name: str, ids: Sequence[int] | None = None) -> Tensor:
    """The tensor (B, ...), cut from any graph, refused if it holds NaN or infinity; `ids` are numbers for messages."""
    if places := not_finite(x):
        numbers = [ids[place] for place in places] if ids is not None and len(ids) == len(x) else places
        holders = f"samples {some_of(numbers)} hold" if len(numbers) > 1 else f"sample {numbers[0]} holds"
        raise ArgumentError(f"Expected finite {name}, but {holders} NaN or infinity; check how they were normalised.")
    # Tensors made under inference_mode cannot enter a graph; a copy made outside of it can.
    with torch.inference_mode(False):
        return x.clone() if x.is_inference() else x.detach()
