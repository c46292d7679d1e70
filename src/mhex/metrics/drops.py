"""Score differences under changes that do not depend on maps: made once, and read by every map and class."""

from collections.abc import Hashable
from dataclasses import dataclass

import torch
from torch import Tensor

from mhex._settings import check_that
from mhex.perturb.subject import Change, Subject

_ALL = 64  # so many classes are kept without being asked for


@dataclass(frozen=True)
class Drops:
    """`z_c(x) - z_c(x')` for many changed inputs `x'` of each sample."""

    ids: tuple[int, ...]  # number of each sample in its data set
    predicted: Tensor  # predicted class of each, (B,)
    classes: Tensor  # classes that are kept, (B, C); -1 where there is none
    values: Tensor  # (B, n, C), float64
    rounding: Tensor  # differences below it are nothing but rounding, (B,)

    def has(self, classes: Tensor) -> bool:
        """Whether all of these classes (B, J) are kept; -1 is none."""
        return bool(((self.classes[:, None] == classes[..., None]).any(-1) | (classes < 0)).all())

    def of(self, classes: Tensor | None = None) -> Tensor:
        """Differences for one class of each sample, (B, n), by default the predicted one; NaN where it is -1."""
        target = self.predicted if classes is None else torch.as_tensor(classes).to(self.classes)
        fits = target.shape == self.predicted.shape
        check_that(fits, f"one class for each of {len(self.ids)} samples", tuple(target.shape))
        has = self.has(target[:, None])
        check_that(has, "classes whose scores were kept", target.tolist(), "; ask the runner for them")
        column = (self.classes == target[:, None]).int().argmax(1)
        values = self.values[torch.arange(len(target), device=target.device), :, column]
        return values.masked_fill(target[:, None] < 0, torch.nan)


def rounding_of(subject: Subject) -> Tensor:
    """Differences of scores below it are nothing but rounding, (B,)."""
    return 8 * torch.finfo(subject.logits.dtype).eps * subject.logits.double().abs().amax(1)


def drops_of(subject: Subject, key: Hashable, count: int, change: Change, wanted: Tensor, words: str) -> Drops:
    """Ask the model about changed inputs of each sample, or read what was asked before.

    Scores of all classes are kept where there are few, else of the `wanted` ones (B, J), -1 for none, and of those of
    before: another class than these costs the passes again. Each sample is changed `count` times: `change` makes inputs
    for the model of samples (M,) and numbers of their changes (M,). The subject keeps the result under `key`, which is
    what the changes depend on beside the samples; `words` are for the progress bar.
    """
    before: Drops | None = subject.shared.get(key)
    if before is not None and before.has(wanted):
        return before
    if subject.count <= _ALL:
        classes = torch.arange(subject.count, device=subject.device).expand(subject.batch.size, -1)
    else:
        classes = wanted if before is None else torch.cat([before.classes, wanted], 1)
    clean = subject.read(subject.logits, classes)[0].double()

    def lost(logits: Tensor, samples: Tensor) -> Tensor:
        return clean[samples] - subject.read(logits, classes[samples])[0].double()

    values = subject.answers(count, change, lost, words)
    drops = subject.shared[key] = Drops(tuple(subject.ids), subject.predicted, classes, values, rounding_of(subject))
    return drops
