"""Where tensors of a ruled pass come from: which layers project into attention, and what comes out of it.

Attention is a function, in one call or written out, and its projections are layers like all others. A tensor that only
norms, scalings and moves separate from a layer carries a mark of it, and attention tells the layers whose marks it is
given.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

_NAME = "_mhex_origin"  # on tensors of the pass alone
# Operations after which a tensor still comes from the same layers.
_KEEPING = frozenset(
    (
        *("route", "concatenate", "layer_norm", "rms_norm", "batch_norm"),
        *("multiply", "divide", "negate", "add", "subtract"),
    )
)


class Mark:
    """A layer of the pass.

    Attributes:
        projects: True if its output goes into attention as queries, keys or values.
    """

    def __init__(self) -> None:
        self.projects = False


Origin = frozenset[Mark]
SOFTMAX: Origin = frozenset((Mark(),))
ATTENTION: Origin = frozenset((Mark(),))
_NOWHERE: Origin = frozenset()


def origin_of(x: Any) -> Origin:
    """The layers that a tensor comes from; empty if it comes from more than layers."""
    found: Origin = getattr(x, _NAME, _NOWHERE)
    return found


def mark(x: Any, origin: Origin) -> None:
    """Write down where a tensor, or each of several, comes from."""
    for tensor in _tensors((x,)):
        setattr(tensor, _NAME, origin)


def follow(name: str, args: tuple[Any, ...], result: Any) -> None:
    """Mark the result of an operation.

    Args:
        name: Of the operation.
        args: What it is given.
        result: What it returns.
    """
    if name == "softmax":
        _project(*args)
        mark(result, SOFTMAX)
    elif name == "attention":
        _project(*args)
        mark(result, ATTENTION)
    elif name == "matmul":
        origins = [origin_of(x) for x in _tensors(args)]
        if SOFTMAX in origins:
            _project(*args)
            mark(result, ATTENTION)
        elif all(origins):
            mark(result, _NOWHERE.union(*origins))
    elif name in _KEEPING:
        origins = [origin_of(x) for x in _tensors(args) if x.requires_grad]
        if origins and all(origin == origins[0] for origin in origins) and origins[0]:
            mark(result, origins[0])


def _project(*args: Any) -> None:
    """Tell the layers that these tensors come from."""
    for x in _tensors(args):
        for layer in origin_of(x):
            layer.projects = True


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)
