"""The handle on a model with heads: everything that can be done with them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

from torch import Tensor, nn

from mhex.capture.graft import ungraft, unsettle
from mhex.errors import MhexWarning, unknown_name
from mhex.heads import calls
from mhex.heads.analysis import Analysis
from mhex.heads.closed_form import ClosedForm
from mhex.heads.files import save_heads
from mhex.heads.heads import PREFIX
from mhex.heads.lifecycle import LifeCycle
from mhex.heads.losses import Mode, Reduction, check_labels, combined_loss
from mhex.heads.ramp import ramp
from mhex.heads.reading import Reading, decided
from mhex.heads.settings import Settings, Source
from mhex.heads.sources import check_classifier, expected_source
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


class Scaffold(ClosedForm, Analysis, LifeCycle):
    """Heads on a model, made by `mhex.attach`; `Scaffold(model)` finds those that a model carries.

    Args:
        model: The model, or a wrapper of it.
    """

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
    def reading(self) -> Reading:
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
        return self.reading.spoken

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
        self.heads.mode, self.heads.decay, self.heads.joined = mode, decay, classifier
        return loss

    @property
    def predict_from(self) -> Source:
        """What predicts: the model's own classifier, the last head, or the running sum.

        By default the classifier where the model returns n class scores, unless it was left out of the loss while the
        gates learned; otherwise the last head after training with `"finetune"` and the running sum after `"pretrain"`.
        Before the first forward pass it is read off the model's last layer; a model whose last layer does not tell
        must be called first.
        """
        return expected_source(self.heads, self.model)

    @predict_from.setter
    def predict_from(self, source: Source | None) -> None:
        if source is not None and source not in get_args(Source):
            raise unknown_name("source of predictions", str(source), get_args(Source))
        if source == "classifier":
            check_classifier(self.heads)
        self.heads.source = source

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
        """Move the gates of preset `"warmup"` from 1 towards the published gate; call it before every step.

        The gates of all other presets, and heads without gates (`coupling="head_only"`), stay as they are: there a
        call only checks its arguments, so that one training loop serves all presets.

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
        ramp(self.heads, step, steps, share)

    # --- leaving ---------------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write the heads with their settings (safetensors); `mhex.attach(model, weights=path)` brings them back."""
        save_heads(self.heads, Path(path))

    def detach(self) -> nn.Module:
        """Take the heads off and give the model back, with the weights that it has now and without gates.

        A host frozen by `freeze_host` is unfrozen. With gates that are not exactly 1 the model is then another
        function, and a warning says so; `fold` keeps them. The scaffold is of no use afterwards, and says so.
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
