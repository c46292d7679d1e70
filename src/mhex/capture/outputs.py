"""Finding the class scores in whatever a model returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from mhex.errors import UnsupportedModelError

SECTION = "'Models that are no classifiers' in docs/explain.md"
# By the number of axes of what is returned.
_EXAMPLES = {
    3: " (of a language model those of the next word, model(...).logits[:, -1]; of tokens or boxes those of one)",
    4: " (of a segmentation those of one region, model(...).mean((2, 3)) over its pixels)",
}


@dataclass(frozen=True)
class Outcome:
    """What one pass ended in, from which targets take their scores.

    Attributes:
        logits: Class scores, (B, C).
        latent: The vector that the classifier reads, (B, D); None if it was not asked for.
    """

    logits: Tensor
    latent: Tensor | None = None


def as_vector(latent: Tensor) -> Tensor:
    """(B, D) of what enters a classifier: some of text are given all tokens and read the first."""
    return latent if latent.dim() == 2 else latent[:, 0] if latent.dim() == 3 else latent.flatten(1)


def read_latent(output: Any, batch: int | None = None) -> Tensor:
    """Latent vectors (B, D) from what a model without a classifier returns.

    Args:
        output: A tensor (B, D), or a Hugging Face output with the `last_hidden_state`, whose first token is taken.
        batch: Number of samples B that it was given, if known.

    Raises:
        UnsupportedModelError: If it is something else.
    """
    hidden = getattr(output, "last_hidden_state", None)
    found = hidden[:, 0] if isinstance(hidden, Tensor) and hidden.dim() == 3 else find_scores(output)
    if found is None or found.dim() != 2 or (batch is not None and found.shape[0] != batch):
        shape = "nothing of that kind" if found is None else f"a tensor of shape {tuple(found.shape)}"
        raise UnsupportedModelError(
            "Expected a latent vector (batch, width) from the model, alone or as the first token of "
            f"'last_hidden_state', but {type(output).__name__} holds {shape}; wrap the model to return it."
        )
    return found


def bare_outcome(output: Any, batch: int | None, refusal: str) -> Outcome:
    """Outcome of a model without a known classifier: its latent vector, in place of scores too.

    Args:
        output: What the model returned.
        batch: Number of samples B that it was given, if known.
        refusal: Why what it returned is no latent vector; empty if it is one.
    """
    if refusal:
        raise UnsupportedModelError(refusal)
    vector = read_latent(output, batch)
    return Outcome(vector, vector)


def read_logits(output: Any, batch: int | None = None) -> Tensor:
    """Class scores (B, C) from a tensor, a tuple, a dictionary or a Hugging Face output object.

    Args:
        output: What the model returned.
        batch: Number of samples B that it was given, if known.

    Raises:
        UnsupportedModelError: If there is no floating-point tensor of shape (B, C) to be found.
    """
    if getattr(output, "last_hidden_state", None) is not None and getattr(output, "logits", None) is None:
        raise UnsupportedModelError(
            f"Expected class scores, but {type(output).__name__} holds hidden states: the model has no classifier. "
            "Give a mhex.Concept as target, or a model with a classifier."
        )
    found = find_scores(output)
    fits = found is not None and found.is_floating_point() and found.dim() in (1, 2) and found.numel() > 0
    if found is None or not fits or (batch is not None and found.shape[0] != batch):
        raise UnsupportedModelError(
            f"Expected the model to return class scores of shape (batch, classes), alone, first in a tuple, or as "
            f"'logits' in a dictionary, but {type(output).__name__} holds {_instead(output, found)}; wrap the model in "
            f"a module that returns such scores{_EXAMPLES.get(0 if found is None else found.dim(), '')}, see {SECTION}."
        )
    return found[:, None] if found.dim() == 1 else found


def _instead(output: Any, found: Tensor | None) -> str:
    """What a model returns in place of class scores, for a message."""
    if found is not None:
        return f"a tensor of shape {tuple(found.shape)} ({found.dtype})"
    items = output.items() if isinstance(output, Mapping) else ()
    tensors = [f"{name} of shape {tuple(t.shape)}" for name, t in items if isinstance(t, Tensor)]
    return " and ".join(tensors) or "nothing of that kind"


def find_scores(output: Any) -> Tensor | None:
    """The tensor that should hold the scores, in whatever a model returns; None if there is none."""
    if isinstance(output, Tensor):
        return output
    if (logits := getattr(output, "logits", None)) is not None:
        return logits if isinstance(logits, Tensor) else None
    if isinstance(output, Mapping):
        if isinstance(logits := output.get("logits", output.get("out")), Tensor):
            return logits
        # By other names, one alone can be told: the start and the end of an answer are not classes of a text.
        tables = [t for t in output.values() if isinstance(t, Tensor) and t.dim() == 2]
        return tables[0] if len(tables) == 1 else None
    if isinstance(output, (tuple, list)):
        # A loss may stand first (a scalar), so the first two-dimensional tensor is taken.
        return next((t for t in output if isinstance(t, Tensor) and t.dim() == 2), None)
    return None
