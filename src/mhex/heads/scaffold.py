"""The handle on a model with heads: everything that can be done with them."""

from collections.abc import Iterator, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import RandomSampler

from mhex.capture import untouched
from mhex.errors import ArgumentError, ArgumentTypeError, unknown_name, warn
from mhex.heads.call_record import HeadReading, HeadsOutput, decided
from mhex.heads.collaboration import CellMode, Collaboration, ConfidenceMap, Study, confidence_map, measure_all, study
from mhex.heads.files import save_heads
from mhex.heads.fit import FitReport, Method, Options, fit_heads, head_accuracy
from mhex.heads.fold import StaticFoldReport, fold_model, fold_static, without_heads
from mhex.heads.heads import PREFIX, Heads, Settings, Source, checked_model, heads_of, required_heads, set_norms
from mhex.heads.losses import Mode, Reduction, combined_loss
from mhex.heads.predictors import call_model, check_source, predicting_source
from mhex.heads.summary import Summary, summarise
from mhex.inputs.data import loader_of, unlabelled
from mhex.stats.correlation import Values


class Scaffold:
    """Heads on a model, made by `mhex.attach`; `Scaffold(model)` finds those that a model, or what it wraps, carries.

    Attributes:
        model: The model, without wrappers; it stays after `detach`.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = checked_model(model)
        self._heads = required_heads(self.model)

    @property
    def attached(self) -> bool:
        """Whether these heads are still on the model."""
        return heads_of(self.model) is self._heads

    @property
    def heads(self) -> Heads:
        """The heads; an ArgumentError after `detach`."""
        if not self.attached:
            raise ArgumentError("These heads were detached; attach heads again with mhex.attach(model, num_classes).")
        return self._heads

    @property
    def host(self) -> nn.Module:
        """The model, if it still carries these heads; an ArgumentError after `detach`."""
        _ = self.heads
        return self.model

    @property
    def settings(self) -> Settings:
        """How the heads were built; known also after `detach`."""
        return self._heads.settings

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the residual connections that carry a block, first to last.

        Before the first forward pass, in the order in which the model is written; from then on, in which they run.
        """
        return self._heads.names

    @property
    def num_classes(self) -> int:
        """Number of classes n."""
        return self.settings.num_classes

    def __repr__(self) -> str:
        if not self.attached:
            return f"Scaffold(detached from {type(self.model).__name__})"
        return f"Scaffold({len(self.names)} heads on {type(self.model).__name__}, {self.num_classes} classes)"

    # --- after a forward pass --------------------------------------------------------------------------------------

    @property
    def reading(self) -> HeadReading:
        """What the heads said in the last forward pass of this thread."""
        return self.heads.sighting()

    def __call__(self, *args: Any, return_heads: bool = False, **kwargs: Any) -> Any:
        """Call the model; with `return_heads`, give its heads' class scores too, as `HeadsOutput`."""
        output = self.host(*args, **kwargs)
        reading = self.reading
        return HeadsOutput(output, reading.heads_only, reading.sum) if return_heads else output

    @property
    def head_logits(self) -> dict[str, Tensor]:
        """Class scores (B, n) of every head in the last forward pass of this thread, by name."""
        logits = self.reading.call.logits
        if not logits:
            self.heads.check_whole("they say nothing")
        return dict(logits)

    @property
    def head_predictions(self) -> dict[str, Tensor]:
        """Classes that the heads predicted in the last forward pass: (B,), or bool (B, n) for several labels."""
        return {name: decided(y, self.settings.multi_label) for name, y in self.head_logits.items()}

    @property
    def logits(self) -> Tensor:
        """Class scores (B, n) of the last forward pass, from `predict_from`."""
        return self.reading.logits

    @property
    def predictions(self) -> Tensor:
        """Classes predicted in the last forward pass, from `predict_from`: (B,), or bool (B, n) for several labels."""
        return decided(self.logits, self.settings.multi_label)

    def loss(
        self,
        labels: Tensor,
        mode: Mode = "finetune",
        reduction: Reduction = "sum",
        decay: float = 0.8,
        classifier: bool = True,
        weights: Sequence[float] | None = None,
    ) -> Tensor:
        """Loss of the last forward pass; call the model first.

        Args:
            labels: Class numbers (B,) or (B, 1), class probabilities (B, n), or for several labels 0 and 1, (B, n).
            mode: `"finetune"`: one loss per head, summed; needed for good maps. `"pretrain"`: one loss of the
                running sum of all class scores.
            reduction: How `"finetune"` joins its losses: by their `"sum"`, as published, or by their `"mean"`.
            decay: Decay of the running sum: 1 is the plain sum, 0 the last term alone.
            classifier: Whether the model's own classifier joins in as the last term.
            weights: Weights of the losses in `"finetune"`, one per term; 1 by default.
        """
        terms = self.reading.trained_terms(classifier)
        labels = self.settings.check_labels(labels, terms[0].shape[0])
        loss = combined_loss(terms, labels, mode, reduction, decay, self.settings.multi_label, weights)
        self.heads.mode, self.heads.decay, self.heads.joined = mode, decay, classifier
        return loss

    @property
    def predict_from(self) -> Source:
        """What predicts: the model's own classifier, the last head, or the running sum.

        By default the classifier where the model returns n class scores, unless it was left out of the loss while the
        gates learned; otherwise the last head after training with `"finetune"` and the running sum after `"pretrain"`.
        A model whose last layer does not tell how many class scores it returns must be called first.
        """
        return predicting_source(self.heads, model=self.model)

    @predict_from.setter
    def predict_from(self, source: Source | None) -> None:
        check_source(source, self.heads)
        self.heads.source = source

    # --- parameters ------------------------------------------------------------------------------------------------

    def head_parameters(self) -> Iterator[nn.Parameter]:
        """Parameters of the heads."""
        return self.heads.parameters()

    def host_parameters(self) -> Iterator[nn.Parameter]:
        """Parameters of the model without its heads."""
        heads = set(self.heads.parameters())
        return (p for p in self.model.parameters() if p not in heads)

    def host_state_dict(self) -> dict[str, Tensor]:
        """State of the model without its heads: what the plain model would give."""
        return {k: v for k, v in self.model.state_dict().items() if not k.startswith(f"{PREFIX}.")}

    def equivalent_matrix(self, name: str) -> Tensor:
        """`W_eq = W2 W1` of a block, (n, C), detached."""
        if name not in self.names:
            raise unknown_name("head", name, self.names)
        return self.heads[name].equivalent_matrix().detach()

    def ramp(self, step: int, steps: int, share: float = 0.1) -> None:
        """Move the gates of preset `"warmup"` from 1 towards the published gate; call it before every step.

        All other gates stay as they are: there a call only checks its arguments, so that one loop serves all presets.

        Args:
            step: Step of training, counted from 0; from `share * steps` on the gate is the published one.
            steps: All steps of training, at least 1.
            share: Part of the steps in which the gate changes, from 0 (at once, after step 0) to 1 (until the end).

        Example:
            >>> import torchvision, mhex
            >>> scaffold = mhex.attach(torchvision.models.resnet18(num_classes=8), 8, preset="warmup")
            >>> scaffold.ramp(5, steps=100)  # half way through the first tenth
            >>> scaffold.summary().rows[0].strength
            0.5
        """
        heads = self.heads
        _check_real("step", step, "a step of training, counted from 0", 0)
        _check_real("steps", steps, "the number of all steps of training, at least 1", 1)
        _check_real("share", share, "the part of the steps in which the gate changes, from 0 to 1", 0, 1)
        if heads.settings.preset == "warmup" and heads.settings.coupling != "head_only":
            for block in heads.named_blocks().values():
                block.strength.fill_(min(1.0, step / max(1.0, share * steps)))

    def freeze_host(self) -> None:
        """Train the heads alone: freeze the model's own parameters and the running statistics of its batch norms.

        Predictions stay the same only if the gates do (preset `"probe"`, coupling `"head_only"`).
        """
        if self.heads.frozen is not None:
            return
        heads = set(self.heads.parameters())
        trainable = {name: p for name, p in self.model.named_parameters() if p.requires_grad and p not in heads}
        for parameter in trainable.values():
            parameter.requires_grad_(False)
        set_norms(self.model, training=False)
        self.heads.frozen = tuple(trainable)

    def unfreeze_host(self) -> None:
        """Undo `freeze_host`: what was trainable before trains again, norms follow the mode of the model."""
        if self.heads.frozen is None:
            return
        for name in self.heads.frozen:
            self.model.get_parameter(name).requires_grad_(True)
        set_norms(self.model, self.model.training)
        self.heads.frozen = None

    def predict(self, data: Any) -> Tensor:
        """Class scores (N, n) from `predict_from`, in evaluation mode and without a graph; the model is left as it was.

        Args:
            data: A batch (a tensor, or a dictionary of arguments), or a loader of batches, with labels or without.
        """
        heads = self.heads
        scores: list[Tensor] = []
        with untouched(self.model), torch.no_grad():
            for inputs in unlabelled(data):
                call_model(self.model, inputs)
                scores.append(heads.sighting().logits)
        if not scores:
            raise ArgumentError("Expected some data to predict, but the loader was empty (or used up).")
        return torch.cat(scores)

    def fit(
        self,
        data: Any,
        method: Method = "ridge",
        *,
        intercept: bool | None = None,
        balance: bool = True,
        strength: float | None = None,
        batch_size: int = 64,
        memory_gb: float = 4.0,
        progress: bool = False,
    ) -> FitReport:
        """Fit all heads in closed form on the frozen model, in one pass over data; no prediction changes.

        For preset `"probe"`, or any heads whose gates stay exactly 1. The strength of the penalty is chosen per head on
        held-out rows (of every class, one in five), and the fit repeated on all rows. On a trained CNN try `relu="pre"`
        first: the mean before its ReLU may be negative in most channels (docs/heads.md has numbers).

        Args:
            data: A loader of batches `(inputs, labels)` or of dictionaries with `labels`; or one pair
                `(inputs, labels)` of tensors. Labels are as in `loss`.
            method: `"ridge"`: least squares from sums kept in float64; memory does not grow with the data. Its scores
                are scaled by one number per head, so that a softmax gives sensible probabilities. `"logistic"`:
                logistic regression on the stored pooled features.
            intercept: Keep an intercept beside each head. By default only yes-or-no heads (`multi_label`, or one class
                score) have one, because they need a threshold. Maps use `W_eq` alone.
            balance: Let every class count the same, however rare; otherwise rows do, and a rare class is seldom
                predicted.
            strength: Strength of the penalty, relative to the mean variance of the features; chosen by default.
            batch_size: Size of the forward passes, if `data` is a pair of tensors.
            memory_gb: How much `"logistic"` may store.
            progress: Draw progress bars.

        Returns:
            Accuracy, strength, rank and time of every head; `print` shows a table. Held-out accuracies are flattering
            if the model was trained on these data: judge with `head_accuracy` on others.

        Example:
            >>> import torch, torchvision, mhex
            >>> model = torchvision.models.resnet18(num_classes=2).eval()
            >>> scaffold = mhex.attach(model, 2, where="downsample", preset="probe")
            >>> report = scaffold.fit((torch.rand(20, 3, 32, 32), torch.arange(20) % 2))
            >>> [block.rank for block in report.blocks]
            [2, 2, 2]
        """
        binary = self.heads.settings.binary
        options = Options(binary, binary if intercept is None else intercept, balance, strength)
        return fit_heads(self.model, self.heads, loader_of(data, batch_size), method, options, memory_gb, progress)

    def head_accuracy(self, data: Any, batch_size: int = 64, progress: bool = False) -> dict[str, float]:
        """Share of right predictions of every head, by name; the last entry is of what predicts (`predict_from`).

        Of several labels, share of right yes-or-no answers.

        Args:
            data: The same as for `fit`.
            batch_size: Size of the forward passes, if `data` is a pair of tensors.
            progress: Draw a progress bar.
        """
        return head_accuracy(self.model, self.heads, loader_of(data, batch_size), progress)

    def collaboration(
        self, inputs: Any, labels: Tensor | None = None, *, chunk: int = 32, progress: bool = False
    ) -> Collaboration:
        """Cosine, per sample and block, of how the gate and how the head pull the matrix that they share.

        Args:
            inputs: A tensor, a dictionary of the model's arguments, a loader of labelled batches, or one pair
                `(inputs, labels)` of tensors.
            labels: The same as for `loss`; None for a loader or a pair, or if the dictionary holds `labels`.
            chunk: The most samples at once; memory grows with it and not with their number.
            progress: Whether to draw a progress bar.

        Example:
            >>> import torch, torchvision, mhex
            >>> scaffold = mhex.attach(torchvision.models.resnet18(num_classes=8), 8)
            >>> scaffold.collaboration(torch.rand(2, 3, 64, 64), torch.tensor([3, 7])).cosine.shape
            torch.Size([2, 7])
        """
        return measure_all(self.host, inputs, labels, chunk, progress)

    def confidence_map(
        self,
        inputs: Any,
        labels: Tensor | None = None,
        grid: int = 7,
        mode: CellMode = "keep",
        blocks: str = "all",
        *,
        chunk: int = 32,
        progress: bool = False,
    ) -> ConfidenceMap:
        """Which parts of an image bring gates and heads together: cosines of copies with one part kept, or hidden.

        Args:
            inputs: Images (B, C, H, W), or a dictionary with `pixel_values`.
            labels: The same as for `loss`.
            grid: Parts in each direction.
            mode: `"keep"`: all but one part has the mean colour. `"occlude"`: one has it; how far the cosines fall.
            blocks: Whose cosines are summed: `"all"`, or the `"last3"` (any number) that have a successor.
            chunk: The most copies at once.
            progress: Whether to draw a progress bar.
        """
        return confidence_map(self.host, inputs, labels, grid, mode, blocks, chunk, progress)

    def collaboration_study(
        self,
        loader: Any,
        against: Mapping[str, Values] | None = None,
        *,
        level: float = 0.95,
        chunk: int = 32,
        progress: bool = False,
    ) -> Study:
        """Correlate each block's cosine with the probability of the true class and with values of your own.

        Args:
            loader: Gives labelled batches, in a fixed order; or one pair `(inputs, labels)` of tensors.
            against: Values (N,) by name, one per sample, for instance `{"SAD": drops}`.
            level: Confidence of the intervals.
            chunk: The most samples at once.
            progress: Whether to draw a progress bar.
        """
        if against and isinstance(getattr(loader, "sampler", None), RandomSampler):
            raise ArgumentError("The loader shuffles, so values in against= would meet other samples; do not shuffle.")
        return study(self.collaboration(loader, chunk=chunk, progress=progress), against, level)

    def reset_classes(self, num_classes: int) -> None:
        """Make the heads ready for another task: new class matrices `W2`, drawn as at the start; `W1` stays.

        Optimisers hold the old matrices: make a new one afterwards. The model's own classifier is not touched.

        Args:
            num_classes: Number of classes of the new task.
        """
        self.heads.reset_classes(num_classes)

    def summary(self) -> Summary:
        """What the heads add to the model: `print` shows a table; see `Summary.rows` and `Summary.to_dict`."""
        return summarise(self.model, self.heads)

    def strip_heads(self) -> int:
        """Take off, in place, every matrix that predictions do not read; they stay the same to the last bit.

        What goes depends on `predict_from`: with the classifier all class matrices `W2`; with the last head those of
        all others; with the sum nothing. Matrices `W1` of gates that are off (`lambda` 0, as in preset `"probe"`) go
        too unless the last head reads them. Maps and losses need what is gone: save the heads first.

        Returns:
            Number of parameters that went.
        """
        return self.heads.strip(predicting_source(self.heads))

    def fold(self, predict_from: Source | None = None) -> nn.Module:
        """A self-contained inference module that predicts the same; it can be exported, and the model stays as it is.

        Args:
            predict_from: What the module returns; by default that of the scaffold. `"classifier"`: what the model
                returned. `"last_head"` (one matrix `W2 W1` instead of two; call the model once before, which shows the
                order of its units) or `"sum"`: class scores (B, n).

        Example:
            >>> import torch, torchvision, mhex
            >>> scaffold = mhex.attach(torchvision.models.resnet18(num_classes=8).eval(), 8)
            >>> _ = scaffold.model(torch.rand(2, 3, 64, 64))  # shows which head is the last
            >>> folded = scaffold.fold("last_head")
            >>> exported = torch.export.export(folded, (torch.rand(2, 3, 64, 64),))
            >>> exported.module()(torch.rand(2, 3, 64, 64)).shape
            torch.Size([2, 8])
        """
        return fold_model(self.model, self.heads, predicting_source(self.heads, predict_from))

    def fold_static(
        self, data: Any, test: Any = None, predict_from: Source | None = None
    ) -> tuple[nn.Module, StaticFoldReport]:
        """The module of `fold` with every gate fixed at its mean over some data: none is computed. It approximates.

        A fixed gate is absorbed by the batch norm of a projection shortcut; elsewhere it is a factor per channel.

        Args:
            data: A batch or a loader to average over; a loader is gone through twice.
            test: Other data on which to measure what changed.
            predict_from: The same as for `fold`.

        Returns:
            The module, and how far its class scores are from those of the model.
        """
        return fold_static(self.model, self.heads, predicting_source(self.heads, predict_from), data, test)

    # --- leaving ---------------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write the heads with their settings (safetensors); `mhex.attach(model, weights=path)` brings them back."""
        save_heads(self.heads, Path(path))

    def detach(self) -> nn.Module:
        """Take the heads off and give the model back, with the weights that it has now and without gates.

        A host frozen by `freeze_host` is unfrozen. Where gates are not exactly 1, a warning says that the model is
        another function without them; `fold` keeps them. The scaffold is of no use afterwards.
        """
        if any(block.gate_state() not in ("none", "off", "one") for block in self.heads.named_blocks().values()):
            warn("The gates are active: without them the model is another function; fold() gives one that keeps them.")
        self.unfreeze_host()
        self._heads.record.forget()
        return without_heads(self.model)


def _check_real(name: str, value: Any, meaning: str, low: float, high: float = float("inf")) -> None:
    if not isinstance(value, Real) or value is True or value is False:
        raise ArgumentTypeError(f"Expected {name} to be {meaning}, but got {value!r}.")
    if not low <= float(value) <= high:  # also where it is not a number
        raise ArgumentError(f"Expected {name} to be {meaning}, but got {name}={value!r}.")
