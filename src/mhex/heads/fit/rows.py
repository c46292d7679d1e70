"""Rows to fit: what is gathered from each batch, and labels as numbers from 0 to 1."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from mhex.errors import ArgumentError
from mhex.heads.block import wide_dtype
from mhex.heads.fit.linear import Options, Outcome
from mhex.heads.fit.logistic import fit_logistic
from mhex.heads.fit.ridge import Moments, fit_ridge
from mhex.heads.losses import check_labels

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


class Gatherer(Protocol):
    """What a method keeps of the rows."""

    def add(self, features: Mapping[str, Tensor], y: Tensor, held: Tensor) -> None:
        """Take in a batch: features (B, C) of every block, labels (B, n), and which rows are held out, (B,)."""

    def fit(self, name: str, options: Options) -> Outcome:
        """Fit the head of a block."""

    def held_labels(self) -> Tensor:
        """Labels (M, n) of the rows of `Outcome.trial`."""


class RidgeGatherer:
    """Moments of training and held-out rows: constant memory.

    Args:
        channels: Width of every block by name.
        num_classes: n.
        device: Where the sums are; on the CPU if it has no float64.
    """

    def __init__(self, channels: Mapping[str, int], num_classes: int, device: torch.device) -> None:
        self.device = wide_device(device)
        self.moments = {
            name: [Moments.empty(width, num_classes, self.device) for _ in range(2)] for name, width in channels.items()
        }
        self.sample = Sample()
        self.places = {name: number for number, name in enumerate(channels)}

    def add(self, features: Mapping[str, Tensor], y: Tensor, held: Tensor) -> None:
        """Add to the sums, and keep some held-out rows, on which scores are judged."""
        y, held = y.to(self.device), held.to(self.device)
        for name, moments in self.moments.items():
            h = features[name].to(self.device).double()
            for part, rows in zip(moments, (~held, held), strict=True):
                part.add(h[rows], y[rows])
        self.sample.add(*(features[name][held.to(features[name].device)] for name in self.places), y[held])

    def fit(self, name: str, options: Options) -> Outcome:
        """Ridge."""
        train, held = self.moments.pop(name)  # frees two (C, C) afterwards
        return fit_ridge(train, held, self.sample.columns()[self.places[name]], self.held_labels(), options)

    def held_labels(self) -> Tensor:
        """Of the rows kept."""
        return self.sample.columns()[-1]


class LogisticGatherer:
    """All pooled features, float32, in the memory of the CPU.

    Args:
        channels: Width of every block by name.
        device: Where to fit.
        memory_gb: How much may be stored.
        expected: Number of rows, if known.
    """

    def __init__(self, channels: Mapping[str, int], device: torch.device, memory_gb: float, expected: int | None):
        self.device, self.memory_gb = wide_device(device), memory_gb
        self.row_bytes = 4 * sum(channels.values())
        self.features: dict[str, list[Tensor]] = {name: [] for name in channels}
        self.labels: list[Tensor] = []
        self.held: list[Tensor] = []
        if expected is not None:
            self._check(expected)

    def add(self, features: Mapping[str, Tensor], y: Tensor, held: Tensor) -> None:
        """Store the rows."""
        self._check(sum(map(len, self.held)) + len(held))
        for name, kept in self.features.items():
            kept.append(features[name].to("cpu", wide_dtype(features[name]), copy=True))
        self.labels.append(y.cpu())
        self.held.append(held.cpu())

    def fit(self, name: str, options: Options) -> Outcome:
        """Logistic regression."""
        h = torch.cat(self.features.pop(name)).to(self.device).double()
        return fit_logistic(h, torch.cat(self.labels).to(h), torch.cat(self.held).to(self.device), options)

    def held_labels(self) -> Tensor:
        """Of all held-out rows."""
        return torch.cat(self.labels)[torch.cat(self.held)]

    def _check(self, rows: int) -> None:
        if (needed := rows * self.row_bytes / 1e9) > self.memory_gb:
            raise ArgumentError(
                f"The pooled features of {rows} samples take {needed:.1f} GB, more than memory_gb={self.memory_gb:g}: "
                "use method='ridge', which needs no more memory for more samples, or allow more."
            )


def wide_device(device: torch.device) -> torch.device:
    """The device, or the CPU where it has no float64."""
    return torch.device("cpu") if device.type == "mps" else device


def label_rows(labels: Tensor, batch: int, num_classes: int, multi_label: bool) -> Tensor:
    """Labels as numbers from 0 to 1, (B, n), float64.

    Args:
        labels: As `Scaffold.loss` takes them.
        batch: B.
        num_classes: n.
        multi_label: Whether a sample may have several classes.
    """
    if labels.is_floating_point() and not bool(torch.isfinite(labels).all()):
        raise ArgumentError("Expected finite labels, but some are NaN or infinite.")
    labels = check_labels(labels, batch, num_classes, multi_label)
    if labels.dim() == 1:
        return F.one_hot(labels.long(), num_classes).double()
    y = labels.double()
    if not multi_label and num_classes > 1 and bool(((y.sum(1) - 1).abs() > 1e-3).any()):
        raise ArgumentError(
            "Expected class probabilities that sum to 1 in every row; for samples with several classes attach the "
            "heads with multi_label=True."
        )
    return y
