"""Where tensors of a ruled pass come from: which layers project into attention, and what comes out of it.

Attention is a function, in one call or written out, and its projections are layers like all others. A tensor that only
norms, scalings and moves separate from a layer carries a mark of it, and attention tells the layers whose marks it is
given.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

_NAME = "_mhex_origin"  # on tensors of the pass alone
# Operations after which a tensor still comes from the same layers.
_KEEPING = frozenset(
    (
        *("route", "concatenate", "layer_norm", "rms_norm", "batch_norm"),
        *("multiply", "divide", "negate", "add", "subtract"),
    )
)
_FOLLOWED = _KEEPING | {"attention", "matmul", "softmax"}


class Mark:
    """A layer of the pass.

    Attributes:
        projects: True if its output goes into attention as queries, keys or values.
    """

    def __init__(self) -> None:
        self.projects = False


@dataclass(frozen=True)
class Origin:
    """What a tensor comes from.

    Attributes:
        layers: The layers.
        kind: `"layers"` alone, `"weights"` for a softmax of their products, or `"attention"` for what it returned.
    """

    layers: frozenset[Mark]
    kind: Literal["layers", "weights", "attention"] = "layers"


def origin_of(x: Any) -> Origin | None:
    """What a tensor comes from; None if from more than that."""
    origin: Origin | None = getattr(x, _NAME, None)
    return origin


def is_from(x: Any, kind: str) -> bool:
    """Whether a tensor comes from attention, or is its weights."""
    origin = origin_of(x)
    return origin is not None and origin.kind == kind


def mark(x: Any, origin: Origin | None) -> None:
    """Write down what a tensor, or each of several, comes from."""
    for tensor in _tensors((x,)):
        setattr(tensor, _NAME, origin)


def follow(name: str, args: tuple[Any, ...], result: Any) -> None:
    """Mark the result of an operation.

    Args:
        name: Of the operation.
        args: What it is given.
        result: What it returns.
    """
    if name not in _FOLLOWED:
        return
    inputs = [x for x in _tensors(args) if x.requires_grad or name not in _KEEPING or origin_of(x) is not None]
    origins = [origin_of(x) for x in inputs]
    layers = frozenset[Mark]().union(*(origin.layers for origin in origins if origin is not None))
    if name == "attention" or (name == "matmul" and any(is_from(x, "weights") for x in inputs)):
        for layer in layers:
            layer.projects = True
        mark(result, Origin(frozenset(), "attention"))
    elif name == "softmax":
        mark(result, Origin(layers, "weights"))
    elif name == "matmul":
        if None not in origins:
            mark(result, Origin(layers))
    elif inputs and all(origin is not None and origin == origins[0] for origin in origins):
        mark(result, origins[0])


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)
