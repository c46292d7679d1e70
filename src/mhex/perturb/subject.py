"""A batch that is judged: its model, its classes, and what every metric shares, computed once."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, TypeVar
from weakref import WeakSet

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mhex._progress import track
from mhex._settings import check_that
from mhex.capture import Batch, Ending, Outputs, check_outputs, find_ending, has_sigmoids, logits_of, untouched, unwrap
from mhex.capture.guard import model_failures
from mhex.capture.replay import in_chunks
from mhex.capture.wrappers import compiled_form
from mhex.errors import ArgumentError
from mhex.inputs import Prepared, prepare
from mhex.perturb.references import reference

Result_co = TypeVar("Result_co", covariant=True)
Change = Callable[[Tensor, Tensor], Batch]  # to inputs for the model


@dataclass(frozen=True)
class PassResult:
    """What the model said of changed samples."""

    ids: tuple[int, ...]  # number of each sample in its data set
    runner: Any = field(default=None, kw_only=True)  # how it was made; None where it is not known


class Runner(ABC, Generic[Result_co]):
    """A way of changing samples and asking the model about them. `ask` says what it takes beside the samples."""

    @abstractmethod
    def ask(self, subject: Subject, *args: Any, **kwargs: Any) -> Result_co:
        """Make the passes."""

    def __call__(
        self,
        model: nn.Module | Subject,
        x: Any = None,
        *args: Any,
        label: Tensor | Sequence[int] | None = None,
        ids: Sequence[int] | Tensor | None = None,
        **kwargs: Any,
    ) -> Result_co:
        """Make the passes.

        Args:
            model: A classifier that returns logits; or a `Subject`, whose other passes are shared, and which has
                inputs, labels, ids and options of its own.
            x: Inputs as for `mhex.explain`.
            args: What `ask` takes beside the samples.
            label: Class by the data set, (B,).
            ids: Number of each sample in its data set.
            kwargs: What `ask` takes, by name; and options of `Subject`.
        """
        options = {name: kwargs.pop(name) for name in OPTIONS if name in kwargs}
        if not isinstance(model, Subject):
            return self.ask(Subject(model, x, label, ids, **options), *args, **kwargs)
        if options or any(value is not None for value in (x, label, ids)):
            raise ArgumentError("Expected inputs, labels, ids and options with a model; a Subject has its own.")
        return self.ask(model, *args, **kwargs)


_WARNED_OF: WeakSet[nn.Module] = WeakSet()  # not once more for every batch
_FEW = 2  # samples that show how a model ends
_TOKEN_WIDTH = 512  # numbers that a token is taken to hold, where passes are cut
ROLES = ("explained", "predicted", "label", "other")  # of the classes whose outputs are kept


class Subject:
    """Samples under perturbation; random choices depend on their `ids` and a seed alone."""

    def __init__(
        self,
        model: nn.Module,
        inputs: Any,
        label: Tensor | Sequence[int] | None = None,
        ids: Sequence[int] | Tensor | None = None,
        *,
        preprocess: Callable[[Any], Tensor] | None = None,
        tokenizer: Callable[..., Mapping[str, Any]] | None = None,
        multi_label: bool | None = None,
        outputs: Outputs | None = None,
        batch_size: int | None = None,
        progress: bool = False,
    ) -> None:
        """Prepare.

        Args:
            model: Whose outputs are read; a classifier.
            inputs: As for `mhex.explain`.
            label: Class of each sample by the data set.
            ids: Number of each sample in its data set; None for 0, 1, 2...
            preprocess: As for `mhex.explain`.
            tokenizer: As for `mhex.explain`.
            multi_label: Whether each class has a sigmoid of its own; None for what the model's end says.
            outputs: What the model returns, as for `mhex.explain`.
            batch_size: The most samples in one pass; None for what is good for the device.
            progress: Draw progress bars.
        """
        number = isinstance(batch_size, int) and not isinstance(batch_size, bool) and batch_size >= 1
        expectation = "the most samples in one pass (batch_size, or inner_batch of mhex.evaluate) to be a whole number"
        check_that(number or batch_size is None, f"{expectation} from 1 on", repr(batch_size))
        self.model, self._entrance = unwrap(model), model
        numbers = None if ids is None else [int(i) for i in ids]
        ready = isinstance(inputs, Prepared)
        self.prepared = inputs if ready else prepare(self.model, inputs, preprocess, tokenizer, numbers)
        self.batch: Batch = self.prepared.batch
        self.ids = list(range(self.batch.size)) if numbers is None else numbers
        self.label = None if label is None else torch.as_tensor(label, device=self.device).long()
        check_outputs(outputs)
        self.multi_label, self.batch_size, self.progress = bool(multi_label), batch_size, progress
        self.outputs, self._may_be_several = outputs, multi_label is None
        self._ending: Ending | None = None  # known once the samples were run as they are
        self.passes = 0  # samples that the model was run on so far
        self.saved = 0  # changed samples that were asked for again, by another map or metric, and not run again
        self.shared: dict[Any, Any] = {}  # what serves all maps, by the runner that made it
        self._references: dict[tuple[str, float | None, int | None], Tensor] = {}
        for name, value in (("ids", self.ids), ("label", self.label)):
            if value is not None:
                check_that(len(value) == self.batch.size, f"{name} of {self.batch.size} samples", len(value))

    @property
    def device(self) -> torch.device:
        return self.main.device

    @property
    def main(self) -> Tensor:
        """Pixels (B, C, H, W), token ids (B, T) or word embeddings (B, T, D)."""
        if self.batch.modality == "image":
            return self.batch.pixels
        ids = self.batch.kwargs.get("input_ids")
        inputs: Tensor = self.batch.kwargs["inputs_embeds"] if ids is None else ids
        return inputs

    @cached_property
    def logits(self) -> Tensor:
        """Logits of the samples as they are, (B, C), float32 or better; one pass for all metrics."""
        bad = [i for i, finite in zip(self.ids, self.finite.tolist(), strict=True) if not finite]
        if bad:
            raise ArgumentError(
                "Expected finite scores of the samples as they are, but the model gave NaN or infinity for "
                f"{'sample' if len(bad) == 1 else 'samples'} {', '.join(map(str, bad))}."
            )
        highest = max(2, self.raw_logits.shape[1]) - 1
        if self.label is not None and bool((self.label > highest).any() | (self.label < -1).any()):
            raise ArgumentError(f"Expected labels from 0 to {highest}, but got up to {int(self.label.max())}.")
        return self.raw_logits

    @cached_property
    def raw_logits(self) -> Tensor:
        """The same as the model gives them, which may be NaN or infinite for some samples."""
        with model_failures(self.model, self.batch):
            logits = self._clean()
        few = self.variants(self.main, torch.arange(min(_FEW, self.batch.size), device=self.device))
        with untouched(self.model):
            self._ending = find_ending(self.model, few, logits, self.outputs, _WARNED_OF)
        if self._ending is not None:
            logits = self._clean()
        self.multi_label |= self._may_be_several and has_sigmoids(self._ending, logits)
        return logits

    @property
    def finite(self) -> Tensor:
        """Whether the model's outputs are finite for each sample, bool (B,), on the CPU."""
        return torch.isfinite(self.raw_logits).all(1).cpu()

    @property
    def ending(self) -> Ending | None:
        """How the model makes probabilities of its logits; None if it returns logits."""
        _ = self.raw_logits
        return self._ending

    def _clean(self) -> Tensor:
        parts = self._run(self.batch.size, lambda jobs: self.variants(self.main, jobs))
        return torch.cat([logits for _, logits in parts])

    @property
    def predicted(self) -> Tensor:
        """The class with the highest score, (B,)."""
        return top_class(self.logits)

    @property
    def count(self) -> int:
        """Number of classes; a single output stands for two."""
        return max(2, self.logits.shape[1])

    def variants(self, value: Tensor, samples: Tensor, rows: bool = True) -> Batch:
        """Inputs for the model: of whole-batch values, those of some samples; or a value for each of them already."""
        return self.batch.variants(value[samples] if rows else value, samples)

    def answers(self, count: int, change: Change, read: Callable[[Tensor, Tensor], Tensor], words: str = "") -> Tensor:
        """What is read of the logits of `count` changed inputs of each sample, (B, count, ...).

        `change` makes inputs for the model of samples (M,) and numbers of their changes (M,), and `read` is given
        logits (M, C) and samples (M,).
        """
        size = self.batch.size
        parts = self.run(size * count, lambda jobs: change(jobs // count, jobs % count), words)
        answers = torch.cat([read(logits, jobs // count) for jobs, logits in parts])
        return answers.view(size, count, *answers.shape[1:])

    def run(self, count: int, make: Callable[[Tensor], Batch], words: str = "") -> Iterator[tuple[Tensor, Tensor]]:
        """Numbers (M,) and logits (M, C), in float32 or better, of so many inputs, a few at a time.

        `make` turns their numbers into inputs for the model, and `words` are for the progress bar.
        """
        if self.outputs != "logits":
            _ = self.raw_logits  # it shows how the model ends
        yield from self._run(count, make, words)

    def _run(self, count: int, make: Callable[[Tensor], Batch], words: str = "") -> Iterator[tuple[Tensor, Tensor]]:
        def run(start: int, stop: int) -> Tensor:
            batch = make(torch.arange(start, stop, device=self.device))
            # Compiled once for passes of sweeps and of methods, which run without inference mode.
            with torch.inference_mode(compiled is None), torch.no_grad():
                output = logits_of(self.model, batch, self._ending, compiled)
            return output.to(torch.promote_types(output.dtype, torch.float32))

        width = self.main[0].numel() if self.batch.modality == "image" else self.main.shape[1] * _TOKEN_WIDTH
        bar = track(range(count), words, self.progress and bool(words))
        compiled = compiled_form(self._entrance)
        with untouched(self.model):
            for start, stop, logits in in_chunks(count, run, width, self.device, self.batch_size, bar):
                yield torch.arange(start, stop, device=self.device), logits
        self.passes += count

    def reference(self, name: str, sigma: float | None = None, radius: int | None = None) -> Tensor:
        """Values of removed pixels, (B, C, H, W); see `mhex.perturb.reference`."""
        key = (name, sigma, radius)
        if key not in self._references:
            self._references[key] = reference(name, self.batch.pixels, self.batch.scale, sigma, radius)
        return self._references[key]

    def classes(self, explained: Tensor | None = None, other_class: Tensor | None = None) -> Tensor:
        """Classes whose outputs are kept, (B, 4): explained, predicted, label and another; -1 where there is none."""
        none = torch.full_like(self.predicted, -1)
        columns = [self.predicted if explained is None else explained, self.predicted, self.label, other_class]
        classes = torch.stack([none if column is None else column.to(self.device) for column in columns], 1)
        wrong = (classes >= self.count).any(1) | (classes[:, 0] < 0)
        expectation = f"one explained class from 0 to {self.count - 1} for each of {self.batch.size} samples"
        check_that(not bool(wrong.any()), expectation, classes[:, 0].tolist())
        return classes

    def read(self, logits: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
        """Scores of classes (M, J), and norms: `log p = z - norm`. One output `z` scores class 1, and `-z` class 0."""
        logits = logits.double()  # or a probability near 1 is 1
        if logits.shape[1] == 1:
            z = logits * (2 * classes.clamp_min(0) - 1)
            return z, F.softplus(z)
        z = logits.gather(1, classes.clamp_min(0))
        if self.multi_label:
            return z, F.softplus(z)
        return z, logits.logsumexp(1, keepdim=True).expand_as(z)

    def complement(self, logits: Tensor, classes: Tensor) -> Tensor:
        """Score of all other classes together, (M, J), so that `z - complement` are the log-odds of classes (M, J).

        Taken from the other logits: `1 - p` of a class that the model is sure of is nothing but rounding.
        """
        z, norm = self.read(logits, classes)
        if logits.shape[1] == 1 or self.multi_label:
            return torch.zeros_like(z)
        logits, top = logits.double(), logits.argmax(1, keepdim=True)
        below = logits.scatter(1, top, -torch.inf).logsumexp(1, keepdim=True)
        # Any class but the highest has at most half of the probability, and nothing is lost by taking it off.
        low = norm + torch.log1p(-(z - norm).exp().clamp_max(0.5))
        return torch.where(classes == top, below, low)

    def probabilities(self, logits: Tensor, classes: Tensor) -> Tensor:
        """Probabilities of classes (M, J), float64; NaN where there is none."""
        z, norm = self.read(logits, classes)
        return (z - norm).exp().masked_fill(classes < 0, torch.nan)


OPTIONS = tuple(inspect.getfullargspec(Subject.__init__).kwonlyargs)


def check_images(subject: Subject) -> None:
    """Refuse texts, which have no pixels that could be moved or hidden."""
    check_that(subject.batch.modality == "image", "images", "texts", ", which this is not defined for")


def column_of(scored: str, defined: Tensor) -> int:
    """Place of the scored class among `ROLES`; `defined`, bool (B, J), says which samples have a class of each role."""
    roles = ROLES[: defined.shape[1]]
    check_that(scored in roles, f"scored to be one of {', '.join(roles)}", repr(scored))
    column = roles.index(scored)
    if scored == "label" and not bool(defined[:, column].all()):
        raise ArgumentError("Expected labels for what is scored by them; give label=.")
    return column


def top_class(logits: Tensor) -> Tensor:
    """The class with the highest score, (M,); of a single output, 1 if it is above 0."""
    return (logits[:, 0] > 0).long() if logits.shape[1] == 1 else logits.argmax(1)
