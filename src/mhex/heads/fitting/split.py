"""Which rows of a stream are held out, and keeping a bounded number of them."""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor

EVERY = 5


class Split:
    """Decides row by row, from the labels alone: independent of batches, the same in every run.

    Of every class the second of each five rows is held out, so the first row of a class always trains and two rows
    per class are enough to hold something out. A row with several labels belongs to the one that was rarest so far.
    """

    def __init__(self) -> None:
        self.seen: Counter[int] = Counter()

    def __call__(self, y: Tensor) -> Tensor:
        """Which rows are held out, bool (B,), on the device of `y`.

        Args:
            y: Labels from 0 to 1, (B, n); of one class per row, its class probabilities.
        """
        held = []
        strata = _strata(y)
        for classes in strata:
            rarest = min(classes, key=lambda c: (self.seen[c], c))
            held.append(self.seen[rarest] % EVERY == 1)
            self.seen.update(classes)
        return torch.tensor(held, dtype=torch.bool, device=y.device)


def _strata(y: Tensor) -> list[list[int]]:
    """Classes of each row; -1 for none."""
    yes = (y > 0.5).cpu()
    groups: list[list[int]] = [[] for _ in range(len(y))]
    for row, column in yes.nonzero().tolist():
        groups[row].append(column)
    return [group or [-1] for group in groups]


class Sample:
    """Some of the rows of a stream, evenly spaced over all of it: a sorted stream must not show its first class only.

    Args:
        limit: Keep between so many and twice as many rows of a long stream; all of a short one.
    """

    def __init__(self, limit: int = 2048) -> None:
        self.limit, self.stride, self.count = limit, 1, 0
        self.parts: list[list[Tensor]] = []

    def add(self, *columns: Tensor) -> None:
        """Take in rows, given as tensors (B, ...) that belong together."""
        places = torch.arange(self.count, self.count + len(columns[0]))
        self.count += len(places)
        chosen = places % self.stride == 0
        self.parts.append([column[chosen.to(column.device)].cpu() for column in columns])
        if sum(len(part[0]) for part in self.parts) > 2 * self.limit:
            self.parts = [[column[::2] for column in self.columns()]]
            self.stride *= 2

    def columns(self) -> list[Tensor]:
        """The rows kept, one tensor for each of `add`."""
        if len(self.parts) > 1:
            self.parts = [[torch.cat(column) for column in zip(*self.parts, strict=True)]]
        return self.parts[0]
