"""Finding the class scores in whatever a model returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from mhex.errors import UnsupportedModelError


def read_logits(output: Any, batch: int | None = None) -> Tensor:
    """Class scores (B, C) from a tensor, a tuple, a dictionary or a Hugging Face output object.

    Args:
        output: What the model returned.
        batch: Number of samples B that it was given, if known.

    Raises:
        UnsupportedModelError: If there is no floating-point tensor of shape (B, C) to be found.
    """
    found = _candidate(output)
    fits = found is not None and found.is_floating_point() and found.dim() in (1, 2) and found.numel() > 0
    if found is None or not fits or (batch is not None and found.shape[0] != batch):
        shape = "nothing of that kind" if found is None else f"a tensor of shape {tuple(found.shape)} ({found.dtype})"
        raise UnsupportedModelError(
            f"Expected the model to return class scores of shape (batch, classes), alone, first in a tuple, or as "
            f"'logits' in a dictionary, but {type(output).__name__} holds {shape}; wrap the model to return them."
        )
    return found[:, None] if found.dim() == 1 else found


def _candidate(output: Any) -> Tensor | None:
    if isinstance(output, Tensor):
        return output
    if (logits := getattr(output, "logits", None)) is not None:
        return logits if isinstance(logits, Tensor) else None
    if isinstance(output, Mapping):
        if isinstance(logits := output.get("logits", output.get("out")), Tensor):
            return logits
        output = tuple(output.values())
    if isinstance(output, (tuple, list)):
        # A loss may stand first (a scalar), so the first two-dimensional tensor is taken.
        return next((t for t in output if isinstance(t, Tensor) and t.dim() == 2), None)
    return None
