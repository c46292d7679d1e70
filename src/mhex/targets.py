"""What is to be explained: which score of the model, for each sample."""

import operator
import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mhex._settings import check_that
from mhex.capture import Outcome, full
from mhex.concept import Concept
from mhex.errors import ArgumentError, ArgumentTypeError, unknown_name
from mhex.inputs.prepared import WHOLE_NUMBERS

Target = None | int | str | Tensor | Concept | Sequence[int | str] | Sequence[Concept] | Callable[[Tensor], Tensor]
Task = Literal["classification", "multi-label", "regression"]
Samples = int | Tensor | None
_FEW = 16
_MOST_OUTPUTS = 16  # of a regression that are explained unasked


@dataclass(frozen=True)
class ResolvedTarget:
    """Targets of a batch: K classes or outputs per sample, or scores given in another way."""

    index: Tensor | None  # numbers of classes or outputs, (B, K); None for concepts and functions
    several: bool  # the user asked for several targets, so results keep the axis K
    task: Task = "classification"
    # For each target that is no class, from a pass, and a sample as for `scores`, to scores (B,); and their names.
    functions: tuple[Callable[[Outcome, Samples], Tensor], ...] = ()
    names: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """Number of targets K."""
        return len(self.functions) if self.index is None else self.index.shape[1]

    def score(self, outcome: Outcome, k: int) -> Tensor:
        """Score of target `k` alone, (B,); see `scores`."""
        if self.index is None:
            return self.functions[k](outcome, None)
        return replace(self, index=self.index[:, k : k + 1]).scores(outcome)[:, 0]

    def scores(self, outcome: Outcome, sample: Samples = None) -> Tensor:
        """Scores of all targets, (B, K), in at least float32: logits of classes, outputs, values of functions.

        A single-output binary classifier has classes 0 and 1 with scores `-logit` and `+logit`. The outcome is of a
        pass over the batch, or several copies of it one after the other; or over variants of one sample, whose number
        is given, or of several, with the sample of each row, (M,).
        """
        if self.index is None:
            return torch.stack([function(outcome, sample) for function in self.functions], 1)
        logits = full(outcome.logits)
        index = _rows(self.index, logits.shape[0], sample)
        if logits.shape[1] == 1 and self.task != "regression":
            return logits * (2 * index - 1)
        return logits.gather(1, index)

    @property
    def probable(self) -> bool:
        """True if targets have probabilities."""
        return self.index is not None and self.task != "regression"

    def shares(self, outcome: Outcome, sample: Samples = None) -> Tensor:
        """Probabilities of all targets, (B, K); the scores themselves where a target has none. As for `scores`."""
        if self.index is None or not self.probable:
            return self.scores(outcome, sample)
        shares = probabilities(outcome.logits, self.task == "multi-label")
        return shares.gather(1, _rows(self.index, shares.shape[0], sample))


def _rows(index: Tensor, size: int, sample: Samples) -> Tensor:
    """Numbers of classes of each row of a pass, (size, K), from those of the samples (B, K); see `scores`."""
    if isinstance(sample, Tensor):
        return index.index_select(0, sample.to(index.device))
    if sample is not None:
        return index[sample].expand(size, -1)
    return index if size == index.shape[0] else index.repeat(size // index.shape[0], 1)


def probabilities(logits: Tensor, multi_label: bool = False) -> Tensor:
    """Class probabilities (B, C) of logits (B, C), in at least float32; a single output becomes two classes, 0, 1."""
    logits = full(logits.detach())
    if multi_label and logits.shape[1] > 1:  # classes are judged one by one
        return logits.sigmoid()
    return torch.cat([-logits, logits], 1).mul(0.5).softmax(1) if logits.shape[1] == 1 else logits.softmax(1)


def no_target(task: Task) -> ResolvedTarget:
    """What stands for a target where a model has no classifier and the method looks at none."""
    score = lambda outcome, _: outcome.logits.new_zeros(len(outcome.logits))  # noqa: E731
    return ResolvedTarget(None, False, task, (score,), ("no target",))


def resolve_target(
    target: Any, logits: Tensor, class_names: Sequence[str] | None = None, task: Task = "classification"
) -> ResolvedTarget:
    """Turn what the user gave as `target` of `mhex.explain` into classes per sample, given logits (B, C).

    A number or a name stands for all samples, and so does each of a list; a tensor has a class of every sample, (B,),
    or several, (B, K); `"top5"` stands for the five most probable of each sample.
    """
    batch = logits.shape[0]
    count = logits.shape[1] if task == "regression" else max(2, logits.shape[1])
    several = isinstance(target, (list, tuple))
    items = list(target) if several else [target]
    if any(isinstance(item, Concept) for item in items):
        if not all(isinstance(item, Concept) for item in items):
            raise ArgumentTypeError("Expected concepts alone, or classes alone, in the list given as target, not both.")
        functions = tuple(lambda outcome, _, concept=concept: concept.score(outcome) for concept in items)
        return ResolvedTarget(None, several, task, functions, tuple(concept.label for concept in items))
    if callable(target) and not isinstance(target, Tensor):
        return ResolvedTarget(None, False, task, (partial(_own_score, target, batch),))
    if target is None and task == "regression":
        if count > _MOST_OUTPUTS:
            raise ArgumentError(
                f"Expected a target, because the model has {count} outputs: a number, a name (with class_names=) or a "
                "list."
            )
        return ResolvedTarget(torch.arange(count, device=logits.device).expand(batch, -1), count > 1, task)
    if target is None:
        return ResolvedTarget(probabilities(logits).argmax(1, keepdim=True), False, task)
    if isinstance(target, str) and (top := re.fullmatch(r"top(\d{1,9})", target)) and target not in (class_names or ()):
        k = int(top[1])
        why = ": regressions rank no classes"
        check_that(task != "regression", "an output by number or name", f"'top{k}'", why)
        check_that(1 <= k <= count, f"a target from 'top1' to 'top{count}' for {count} classes", f"'top{k}'")
        return ResolvedTarget(probabilities(logits).topk(k, dim=1).indices, True, task)
    if isinstance(target, Tensor):
        return _per_sample(target, batch, count, logits.device, task)
    if not items:
        raise ArgumentError("Expected at least one class in the list given as target, but it is empty.")
    classes, device = [_class_index(item, count, class_names) for item in items], logits.device
    if device.type == "cpu" or len(classes) > _FEW:
        index = torch.tensor(classes, device=device)
    else:  # a few are written by the device itself, which then is not waited for
        index = torch.cat([torch.full((1,), number, device=device) for number in classes])
    return ResolvedTarget(index.expand(batch, -1), several, task)


def _per_sample(target: Tensor, batch: int, classes: int, device: torch.device, task: Task) -> ResolvedTarget:
    if target.dtype not in WHOLE_NUMBERS:
        raise ArgumentTypeError(f"Expected whole numbers in the target tensor, but got {target.dtype}.")
    if target.is_meta or target.layout is not torch.strided:
        kind = "meta" if target.is_meta else str(target.layout)
        raise ArgumentError(f"Expected a dense target tensor with numbers in it, but got one of kind {kind}.")
    target = target.long()  # torch compares the larger unsigned kinds with nothing
    if target.dim() == 0:
        target = target.expand(batch)
    fits = target.dim() <= 2 and target.shape[0] == batch and target.numel() > 0
    expectation = f"a target tensor of shape ({batch},), one class per sample, or ({batch}, K)"
    advice = "; give a list for several classes of every sample"
    check_that(fits, expectation, tuple(target.shape), advice)
    wrong = target[(target < 0) | (target >= classes)]
    if wrong.numel():
        raise ArgumentError(f"Expected classes from 0 to {classes - 1}, but the target tensor holds {int(wrong[0])}.")
    index = target.to(device)
    return ResolvedTarget(index[:, None] if index.dim() == 1 else index, index.dim() == 2, task)


def _class_index(target: Any, classes: int, names: Sequence[str] | None) -> int:
    if isinstance(target, str):
        if names is None:
            raise ArgumentError(
                f"The model has no class names, so {target!r} means nothing; give a number or class_names=."
            )
        matches = [i for i, name in enumerate(names) if name == target]
        matches = matches or [i for i, name in enumerate(names) if name.casefold() == target.casefold()]
        if not matches:
            raise unknown_name("class", target, names)
        if len(matches) > 1:
            listed = f"{', '.join(map(str, matches[:-1]))} and {matches[-1]}"
            raise ArgumentError(
                f"Expected the name of a single class, but classes {listed} have the name {target!r}; give a number."
            )
        return matches[0]
    try:
        index = operator.index(target)
    except (TypeError, RuntimeError):  # the latter of tensors without numbers in them
        raise ArgumentTypeError(
            f"Expected a class number, a class name, a tensor, a list, 'topK', a Concept or a function as target, but "
            f"got {type(target).__name__}."
        ) from None
    fits = 0 <= index < classes and not isinstance(target, bool)
    check_that(fits, f"a class from 0 to {classes - 1}", f"target {target!r}")
    return index


def _own_score(function: Callable[[Tensor], Tensor], batch: int, outcome: Outcome, sample: Samples) -> Tensor:
    """Scores, as `ResolvedTarget.scores`, by a function of the user's, which is always given a whole batch's logits."""
    logits = full(outcome.logits)
    if sample is not None:
        places = sample.tolist() if isinstance(sample, Tensor) else [sample] * len(logits)
        copies = [row.expand(batch, -1) for row in logits]
        return torch.stack([_checked_scores(function(copy), copy)[n] for copy, n in zip(copies, places, strict=True)])
    parts = [logits[start : start + batch] for start in range(0, len(logits), batch)]
    return torch.cat([_checked_scores(function(part), part) for part in parts])


def _checked_scores(scores: Tensor, logits: Tensor) -> Tensor:
    right = "the target function to return "
    actual = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
    check_that(actual == (len(logits),), f"{right}one score per sample, ({len(logits)},)", actual)
    usable = scores.device == logits.device and scores.is_floating_point() and scores.element_size() > 1
    like_logits = f"{right}scores as {logits.dtype} on {logits.device}, as the logits are"
    check_that(usable, like_logits, f"{scores.dtype} on {scores.device}")
    if logits.requires_grad and not scores.requires_grad:
        raise ArgumentError(
            "Expected the target function to be differentiable, but its scores have no gradient; do not detach."
        )
    check_that(bool(torch.isfinite(scores).all()), f"{right}finite scores", "NaN or infinity")
    return scores


def usual_task(model: nn.Module, several: bool) -> Task:
    """What a Hugging Face configuration says of the outputs, or heads do: whether a sample may have several classes."""
    problem = getattr(getattr(model, "config", None), "problem_type", None)
    if problem == "multi_label_classification" or several:
        return "multi-label"
    return "regression" if problem == "regression" else "classification"


def names_of(model: nn.Module, names: Any, logits: Tensor, task: Task) -> list[str] | None:
    """Names of classes or outputs: those the user gave, a list or a mapping from numbers, or the configuration's."""
    classes = logits.shape[1] if task == "regression" else max(2, logits.shape[1])
    if names is None:
        labels = getattr(getattr(model, "config", None), "id2label", None)
        return _in_order(labels) if isinstance(labels, Mapping) and len(labels) == classes else None
    if isinstance(names, Mapping):  # as in Hugging Face configurations, number -> name
        keys, names = list(names), _in_order(names)
        if names is None:
            raise ArgumentError(f"Expected class names by number from 0 to {len(keys) - 1}, but got the keys {keys}.")
    # Sets have no order; arrays are lists if they have one axis.
    if isinstance(names, (str, bytes, Set)) or not hasattr(names, "__len__") or getattr(names, "ndim", 1) != 1:
        kind = "a single string" if isinstance(names, str) else type(names).__name__
        raise ArgumentTypeError(f"Expected a list of class names, but got {kind}.")
    if len(names) == logits.shape[1] == 1 and task != "regression":  # the output speaks for its class, and against it
        return [f"not {names[0]}", str(names[0])]
    check_that(len(names) == classes, f"{classes} class names, one per output of the model", len(names))
    return [str(name) for name in names]


def _in_order(names: Mapping[Any, Any]) -> list[str] | None:
    """Names by the numbers of their classes, which JSON turns into texts; None if these are not 0, 1, 2..."""
    numbers = {str(key): str(name) for key, name in names.items()}
    places = [str(place) for place in range(len(names))]
    return [numbers[place] for place in places] if numbers.keys() == set(places) else None
