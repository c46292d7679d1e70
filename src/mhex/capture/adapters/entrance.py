"""What enters the attention of a block that nobody described: its input, or what a norm makes of it."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

Call = tuple[nn.Module, int]  # a module, and which of its calls
_PROJECTIONS = (nn.Linear, nn.MultiheadAttention)


class Entrances:
    """Watches the layers of blocks until they attend.

    The first layer that takes a block's whole input and gives something else of the same shape is its norm. A
    projection that takes the input itself shows that there is none; one that takes something else, that a norm cannot
    be seen.

    Attributes:
        norms: The norm of each call of a block that has one.
        unseen: Calls in which something stands before the attention, and no module gives it.
    """

    def __init__(self) -> None:
        self.norms: dict[Call, nn.Module] = {}
        self.unseen: set[Call] = set()
        self._settled: set[Call] = set()

    def enter(self, around: Iterable[tuple[Call, Tensor]], layer: nn.Module, x: Tensor) -> None:
        """A layer begins inside of these calls of blocks, each given with its input."""
        if isinstance(layer, _PROJECTIONS):
            self._project(around, x)

    def leave(self, around: Iterable[tuple[Call, Tensor]], layer: nn.Module, x: Tensor, output: Tensor) -> None:
        """A layer ends."""
        if isinstance(layer, _PROJECTIONS) or next(layer.children(), None) is not None:
            return
        if output.shape != x.shape:  # packed projections that are no linear layers
            self._project(around, x)
        elif not output.equal(x):  # Dropout and the like change nothing
            for call, given in around:
                if call not in self._settled and given.shape == x.shape and given.equal(x):
                    self.norms[call] = layer
                    self._settled.add(call)

    def attend(self, calls: Iterable[Call]) -> None:
        """Attention begins in these calls: what comes after it does not matter."""
        self._settled.update(calls)

    def _project(self, around: Iterable[tuple[Call, Tensor]], x: Tensor) -> None:
        for call, given in around:
            if call not in self._settled and given.shape == x.shape:
                self._settled.add(call)
                if not given.equal(x):
                    self.unseen.add(call)
