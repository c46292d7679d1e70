"""Score differences under changes that do not depend on maps: made once, and read by every map and class."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import torch
from torch import Tensor

from mhex.capture import Batch
from mhex.errors import ArgumentError
from mhex.perturb import Subject

_ALL = 64  # so many classes are kept without being asked for


@dataclass(frozen=True)
class Drops:
    """`z_c(x) - z_c(x')` for many changed inputs `x'` of each sample.

    Attributes:
        ids: Number of each sample in its data set.
        predicted: Predicted class of each, (B,).
        classes: Classes that are kept, (B, C); -1 where there is none.
        values: (B, n, C), float64.
        rounding: Differences below it are nothing but rounding, (B,).
    """

    ids: tuple[int, ...]
    predicted: Tensor
    classes: Tensor
    values: Tensor
    rounding: Tensor

    def has(self, classes: Tensor) -> bool:
        """Whether all of these classes (B, J) are kept; -1 is none."""
        return bool(((self.classes[:, None] == classes[..., None]).any(-1) | (classes < 0)).all())

    def of(self, classes: Tensor | None = None) -> Tensor:
        """Differences for one class of each sample, (B, n), by default the predicted one; NaN where it is -1."""
        wanted = self.predicted if classes is None else torch.as_tensor(classes).to(self.classes)
        if wanted.shape != self.predicted.shape:
            raise ArgumentError(
                f"Expected one class for each of {len(self.ids)} samples, but got {tuple(wanted.shape)}."
            )
        if not self.has(wanted[:, None]):
            raise ArgumentError(
                f"Expected classes whose scores were kept, but got {wanted.tolist()}; ask the runner for them."
            )
        column = (self.classes == wanted[:, None]).int().argmax(1)
        values = self.values[torch.arange(len(wanted), device=wanted.device), :, column]
        return values.masked_fill(wanted[:, None] < 0, torch.nan)


def drops_of(
    subject: Subject,
    key: Hashable,
    count: int,
    change: Callable[[Tensor, Tensor], Batch],
    wanted: Tensor,
    words: str,
) -> Drops:
    """Ask the model about changed inputs of each sample, or read what was asked before.

    Scores of all classes are kept where there are few, else of those asked for so far: another class than these costs
    the passes again.

    Args:
        subject: The samples, which keep the result.
        key: What the changes depend on, beside the samples.
        count: Changed inputs of each sample, n.
        change: From samples (M,) and numbers of their changes (M,) to inputs for the model.
        wanted: Classes to be kept, (B, J); -1 for none.
        words: Words for the progress bar.
    """
    before: Drops | None = subject.shared.get(key)
    if before is not None and before.has(wanted):
        return before
    size = subject.batch.size
    if subject.count <= _ALL:
        classes = torch.arange(subject.count, device=subject.device).expand(size, -1)
    else:
        classes = wanted if before is None else torch.cat([before.classes, wanted], 1)
    clean = subject.read(subject.logits, classes)[0].double()
    values = clean.new_zeros(size, count, classes.shape[1])
    for start, stop, logits in subject.run(size * count, lambda jobs: change(jobs // count, jobs % count), words):
        jobs = torch.arange(start, stop, device=subject.device)
        samples = jobs // count
        values[samples, jobs % count] = clean[samples] - subject.read(logits, classes[samples])[0].double()
    rounding = 8 * torch.finfo(subject.logits.dtype).eps * subject.logits.double().abs().amax(1)
    drops = Drops(tuple(subject.ids), subject.predicted, classes, values, rounding)
    subject.shared[key] = drops
    return drops
