"""What is to be explained: which score of the model, for each sample."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mhex.errors import ArgumentError, ArgumentTypeError, unknown_name

Target = None | int | str | Tensor | Sequence[int | str] | Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class ResolvedTarget:
    """Targets of a batch: K classes per sample, or one score given as a function.

    Attributes:
        index: Class indices, (B, K); None for a function.
        several: True if the user asked for several classes, so results keep the axis K.
        function: Maps logits (B, C) to one score per sample (B,); None for classes.
    """

    index: Tensor | None
    several: bool
    function: Callable[[Tensor], Tensor] | None = None

    @property
    def count(self) -> int:
        """Number of targets K."""
        return 1 if self.index is None else self.index.shape[1]

    def score(self, logits: Tensor, k: int) -> Tensor:
        """Score of target `k`, (B,): the class's logit, in at least float32.

        A single-output binary classifier has classes 0 and 1 with scores `-logit` and `+logit`.
        """
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if self.function is not None:
            return _checked_scores(self.function(logits), logits)
        if self.index is None:
            raise ArgumentError("A target needs class indices or a function.")
        chosen = self.index[:, k]
        if logits.shape[1] == 1:
            return logits[:, 0] * (2 * chosen - 1)
        return logits.gather(1, chosen[:, None])[:, 0]


def probabilities(logits: Tensor, multi_label: bool = False) -> Tensor:
    """Class probabilities (B, C), in at least float32; a single output becomes the two classes 0 and 1.

    Args:
        logits: (B, C). Outputs that are probabilities already, none negative and each row summing to 1, are kept.
        multi_label: Whether classes are judged one by one, so that each has its own sigmoid.
    """
    logits = logits.detach().to(torch.promote_types(logits.dtype, torch.float32))
    if multi_label and logits.shape[1] > 1:
        return logits.sigmoid()
    if logits.shape[1] > 1 and bool((logits >= 0).all()) and bool(((logits.sum(1) - 1).abs() < 1e-4).all()):
        return logits
    return torch.cat([-logits, logits], 1).mul(0.5).softmax(1) if logits.shape[1] == 1 else logits.softmax(1)


def resolve_target(target: Any, logits: Tensor, class_names: Sequence[str] | None = None) -> ResolvedTarget:
    """Turn what the user gave as `target` into classes per sample.

    Args:
        target: None (the predicted class), an int or a class name (the same for all samples), a tensor (B,) (one
            class per sample) or (B, K), a list of classes (each for all samples), `"top5"` (the five most probable
            of each sample), or a function from logits (B, C) to scores (B,).
        logits: (B, C).
        class_names: Names of the classes, if the model has them.
    """
    batch = logits.shape[0]
    classes = max(2, logits.shape[1])
    if target is None:
        return ResolvedTarget(probabilities(logits).argmax(1, keepdim=True), several=False)
    if callable(target) and not isinstance(target, Tensor):
        return ResolvedTarget(None, several=False, function=target)
    if isinstance(target, str) and (top := re.fullmatch(r"top(\d+)", target)) and target not in (class_names or ()):
        return ResolvedTarget(_top(int(top[1]), logits, classes), several=True)
    if isinstance(target, Tensor):
        return _per_sample(target, batch, classes, logits.device)
    if isinstance(target, (list, tuple)):
        if not target:
            raise ArgumentError("Expected at least one class in the list given as target, but it is empty.")
        chosen = [_class_index(t, classes, class_names) for t in target]
        return ResolvedTarget(torch.tensor(chosen, device=logits.device).expand(batch, -1), several=True)
    index = _class_index(target, classes, class_names)
    return ResolvedTarget(torch.full((batch, 1), index, device=logits.device), several=False)


def _top(k: int, logits: Tensor, classes: int) -> Tensor:
    if not 1 <= k <= classes:
        raise ArgumentError(f"Expected a target from 'top1' to 'top{classes}' for {classes} classes, but got 'top{k}'.")
    return probabilities(logits).topk(k, dim=1).indices


def _per_sample(target: Tensor, batch: int, classes: int, device: torch.device) -> ResolvedTarget:
    if target.is_floating_point() or target.dtype == torch.bool:
        raise ArgumentTypeError(f"Expected whole numbers in the target tensor, but got {target.dtype}.")
    if target.dim() == 0:
        target = target.expand(batch)
    if target.dim() > 2 or target.shape[0] != batch or not target.numel():
        raise ArgumentError(
            f"Expected a target tensor of shape ({batch},), one class per sample, or ({batch}, K), but got "
            f"{tuple(target.shape)}; give a list for several classes of every sample."
        )
    wrong = target[(target < 0) | (target >= classes)]
    if wrong.numel():
        raise ArgumentError(f"Expected classes from 0 to {classes - 1}, but the target tensor holds {int(wrong[0])}.")
    index = target.to(device, torch.long)
    return ResolvedTarget(index[:, None] if index.dim() == 1 else index, several=index.dim() == 2)


def _class_index(target: Any, classes: int, names: Sequence[str] | None) -> int:
    if isinstance(target, str):
        if names is None:
            raise ArgumentError(
                f"The model has no class names, so {target!r} means nothing; give a number or class_names=."
            )
        if target not in names:
            folded = [name.casefold() for name in names]
            if folded.count(target.casefold()) == 1:
                return folded.index(target.casefold())
            raise unknown_name("class", target, names)
        return list(names).index(target)
    try:
        index = operator.index(target)
    except TypeError:
        raise ArgumentTypeError(
            f"Expected a class number, a class name, a tensor, a list, 'topK' or a function as target, but got "
            f"{type(target).__name__}."
        ) from None
    if isinstance(target, bool) or not 0 <= index < classes:
        raise ArgumentError(f"Expected a class from 0 to {classes - 1}, but got target {target!r}.")
    return index


def _checked_scores(scores: Tensor, logits: Tensor) -> Tensor:
    if not isinstance(scores, Tensor) or scores.shape != logits.shape[:1]:
        got = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
        raise ArgumentError(
            f"Expected the target function to return one score per sample, ({logits.shape[0]},), but got {got}."
        )
    if logits.requires_grad and not scores.requires_grad:
        raise ArgumentError(
            "Expected the target function to be differentiable, but its scores have no gradient; do not detach."
        )
    if not bool(torch.isfinite(scores).all()):
        raise ArgumentError("Expected the target function to return finite scores, but got NaN or infinity.")
    return scores
