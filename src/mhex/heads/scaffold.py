"""The handle on a model with heads: everything that can be done with them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

from torch import Tensor, nn

from mhex.capture import unwrap
from mhex.capture.graft import ungraft, unsettle
from mhex.errors import ArgumentError, MhexWarning, unknown_name
from mhex.heads import calls
from mhex.heads.collaboration import Collaboration, collaboration
from mhex.heads.confidence import CellMode, ConfidenceMap, confidence_map
from mhex.heads.correlation import Study, Values, collaboration_study
from mhex.heads.files import save_heads
from mhex.heads.fitting import FitReport, Method, fit_heads, head_accuracy
from mhex.heads.heads import PREFIX, Heads, Settings, Source, heads_of
from mhex.heads.lifecycle import LifeCycle
from mhex.heads.losses import Mode, Reduction, check_labels, combined_loss
from mhex.heads.reading import Reading, decided
from mhex.heads.strip import gates_are_one


class HeadsOutput(NamedTuple):
    """What a model with heads says.

    Attributes:
        output: What the host returned.
        heads: Class scores (B, n) of every head, first to last.
        sum: Their running sum, with a kept classifier as its last term, (B, n).
    """

    output: Any
    heads: list[Tensor]
    sum: Tensor


class Scaffold(LifeCycle):
    """Heads on a model, made by `mhex.attach`; `Scaffold(model)` finds those that a model carries.

    Args:
        model: The model, or a wrapper of it.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = unwrap(model)
        heads = heads_of(self.model)
        if heads is None:
            raise ArgumentError("The model carries no heads; attach some with mhex.attach(model, num_classes).")
        self.heads: Heads = heads

    @property
    def settings(self) -> Settings:
        """How the heads were built."""
        return self.heads.settings

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the residual connections that carry a block, first to last."""
        return self.settings.junctions

    @property
    def num_classes(self) -> int:
        """Number of classes n."""
        return self.settings.num_classes

    def __repr__(self) -> str:
        return f"Scaffold({len(self.names)} heads on {type(self.model).__name__}, {self.num_classes} classes)"

    # --- after a forward pass --------------------------------------------------------------------------------------

    @property
    def reading(self) -> Reading:
        """What the heads said in the last forward pass of this thread."""
        return Reading(calls.last(self.heads.token), self.heads)

    def __call__(self, *args: Any, return_heads: bool = False, **kwargs: Any) -> Any:
        """Call the model; with `return_heads`, give its heads' class scores too, as `HeadsOutput`."""
        output = self.model(*args, **kwargs)
        reading = self.reading
        return HeadsOutput(output, reading.heads_only, reading.sum) if return_heads else output

    @property
    def head_logits(self) -> dict[str, Tensor]:
        """Class scores (B, n) of every head in the last forward pass of this thread, by name."""
        return dict(self.reading.call.logits)

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
        return self.reading.predictions

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
            reduction: Of the losses in `"finetune"`: `"sum"` as published, or `"mean"`.
            decay: Of the running sum: 1 is the plain sum, 0 the last term alone.
            classifier: Whether the model's own classifier joins in as the last term.
            weights: Of the losses in `"finetune"`, one per term; 1 by default.
        """
        terms = self.reading.trained_terms(classifier)
        labels = check_labels(labels, terms[0].shape[0], self.num_classes, self.settings.multi_label)
        loss = combined_loss(terms, labels, mode, reduction, decay, self.settings.multi_label, weights)
        self.heads.mode, self.heads.decay = mode, decay
        return loss

    @property
    def predict_from(self) -> Source:
        """What predicts: the model's own classifier, the last head, or the running sum.

        By default the classifier where the model returns n class scores; otherwise the last head after training with
        `"finetune"` and the running sum after `"pretrain"`. Known after the first forward pass unless it was set.
        """
        return self.heads.source or self.reading.source

    @predict_from.setter
    def predict_from(self, source: Source | None) -> None:
        if source is not None and source not in get_args(Source):
            raise unknown_name("source of predictions", str(source), get_args(Source))
        self.heads.source = source

    # --- do gate and head pull the same way? -----------------------------------------------------------------------

    def collaboration(
        self, inputs: Any, labels: Tensor | None = None, *, chunk: int = 32, progress: bool = False
    ) -> Collaboration:
        """Cosine, per sample and block, of how the gate and how the head pull the matrix that they share.

        Args:
            inputs: A tensor, a dictionary of the model's arguments, or a loader of labelled batches.
            labels: As for `loss`; None for a loader, or if the dictionary holds `labels`.
            chunk: The most samples at once; memory grows with it and not with their number.
            progress: Whether to draw a progress bar.

        Example:
            >>> import torch, torchvision, mhex
            >>> scaffold = mhex.attach(torchvision.models.resnet18(num_classes=8), 8)
            >>> scaffold.collaboration(torch.rand(2, 3, 64, 64), torch.tensor([3, 7])).cosine.shape
            torch.Size([2, 7])
        """
        return collaboration(self.model, inputs, labels, chunk, progress)

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
            labels: As for `loss`.
            grid: Parts in each direction.
            mode: `"keep"`: all but one part has the mean colour. `"occlude"`: one has it; how far the cosines fall.
            blocks: Whose cosines are summed: `"all"`, or the `"last3"` (any number) that have a successor.
            chunk: The most copies at once.
            progress: Whether to draw a progress bar.
        """
        return confidence_map(self.model, inputs, labels, grid, mode, blocks, chunk, progress)

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
            loader: Gives labelled batches, in a fixed order.
            against: Values (N,) by name, one per sample, for instance `{"SAD": drops}`.
            level: Confidence of the intervals.
            chunk: The most samples at once.
            progress: Whether to draw a progress bar.
        """
        return collaboration_study(self.model, loader, against, level, chunk, progress)

    # --- without training -----------------------------------------------------------------------------------------

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

        For preset `"probe"`, or any heads whose gates stay exactly 1. Each head's matrix `W_eq` is fitted to the
        pooled features that the head sees. `W1` then has at most n rows that are not 0: `W_eq` is split by a singular
        value decomposition into `W2 W1`. A strength of the penalty is chosen per head on held-out rows (of every
        class, one in five), and the fit repeated on all rows. Channels that never vary get weights of exactly 0.
        On a trained CNN try `relu="pre"` first: in a network that did not train with its heads, the mean before its
        ReLU may be negative in most channels (docs/heads.md has numbers).

        Args:
            data: A loader as for training: batches `(inputs, labels)`, or dictionaries with `labels`; or just one
                pair `(inputs, labels)` of tensors. Labels are as in `loss`.
            method: `"ridge"`: least squares from sums kept in float64; memory does not grow with the data. Its scores
                are multiplied by one number per head, chosen on held-out rows, so that a softmax gives sensible
                probabilities. `"logistic"`: logistic regression on the stored pooled features.
            intercept: Keep an intercept beside each head (`Block.intercept`). The published head has none, and for one
                class out of many it did not pay on real models. By default only yes-or-no heads (`multi_label`, or one
                class score) have one, because they need a threshold. Maps use `W_eq` alone.
            balance: Let every class count the same, however rare; otherwise rows do, and a rare class has small
                weights and is seldom predicted. Ridge replaces class frequencies by equal ones around the common
                covariance within classes; the logistic loss weights rows.
            strength: Of the penalty, relative to the mean variance of the features; chosen by default.
            batch_size: Of forward passes, if `data` is a pair of tensors.
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
        return fit_heads(
            self.model,
            self.heads,
            data,
            method,
            intercept=intercept,
            balance=balance,
            strength=strength,
            batch_size=batch_size,
            memory_gb=memory_gb,
            progress=progress,
        )

    def head_accuracy(self, data: Any, batch_size: int = 64, progress: bool = False) -> dict[str, float]:
        """Share of right predictions of every head, by name; the last entry is of what predicts (`predict_from`).

        Of several labels, share of right yes-or-no answers.

        Args:
            data: As for `fit`.
            batch_size: Of forward passes, if `data` is a pair of tensors.
            progress: Draw a progress bar.
        """
        return head_accuracy(self.model, self.heads, data, batch_size, progress)

    # --- parameters ------------------------------------------------------------------------------------------------

    def head_parameters(self) -> Iterator[nn.Parameter]:
        """Parameters of the heads."""
        return self.heads.parameters()

    def host_parameters(self) -> Iterator[nn.Parameter]:
        """Parameters of the model without its heads."""
        own = {id(p) for p in self.heads.parameters()}
        return (p for p in self.model.parameters() if id(p) not in own)

    def host_state_dict(self) -> dict[str, Tensor]:
        """State of the model without its heads: what the plain model would give."""
        return {k: v for k, v in self.model.state_dict().items() if not k.startswith(f"{PREFIX}.")}

    def equivalent_matrix(self, name: str) -> Tensor:
        """`W_eq = W2 W1` of a block, (n, C), detached."""
        if name not in self.names:
            raise unknown_name("head", name, self.names)
        return self.heads[name].equivalent_matrix().detach()

    def ramp(self, step: int, steps: int, share: float = 0.1) -> None:
        """Move the gates of preset `"warmup"` from 1 towards the published gate; other presets stay as they are.

        Args:
            step: Step of training, counted from 0.
            steps: All steps of training.
            share: Part of the steps in which the gate changes.
        """
        if self.settings.preset == "warmup" and self.settings.coupling != "head_only":
            value = min(1.0, step / max(1.0, share * steps))
            for block in self.heads.named_blocks().values():
                block.strength.fill_(value)

    # --- leaving ---------------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write the heads with their settings (safetensors); `mhex.attach(model, weights=path)` brings them back."""
        save_heads(self.heads, Path(path))

    def detach(self) -> nn.Module:
        """Take the heads off and give the model back, with the weights that it has now and without gates.

        A host frozen by `freeze_host` is unfrozen. With gates that are not exactly 1 the model is then another
        function, and a warning says so; `fold` keeps them.
        """
        if not gates_are_one(self.heads):
            warnings.warn(
                "The gates are active, so without them the model is another function; fold() gives a plain model "
                "that keeps them.",
                MhexWarning,
                stacklevel=2,
            )
        self.unfreeze_host()
        ungraft(self.model)
        unsettle(self.model, self.heads)
        calls.forget(self.heads.token)
        del self.model._modules[PREFIX]
        return self.model
