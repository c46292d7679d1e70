"""From training to shipping: what a scaffold can do to its heads and to what it gives away."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from mhex.heads.fold import fold
from mhex.heads.freeze import freeze, thaw
from mhex.heads.held import Held
from mhex.heads.passes import predict
from mhex.heads.settings import Source, checked_classes
from mhex.heads.static import StaticFoldReport, fold_static
from mhex.heads.strip import reset, strip, what_predicts
from mhex.heads.summary import Summary, summarise


class LifeCycle(Held):
    """Part of `Scaffold`."""

    def predict(self, data: Any) -> Tensor:
        """Class scores (N, n) from `predict_from`, in evaluation mode and without a graph; the model is left as it was.

        Args:
            data: A batch (a tensor, or a dictionary of arguments), or a loader of batches, with labels or without.
        """
        return predict(self.host, data)

    def freeze_host(self) -> None:
        """Train the heads alone: freeze the model's own parameters and the running statistics of its batch norms.

        The norms stay in evaluation mode also after `model.train()`: every call of the model puts them back first.
        Dropout follows `model.train()` as always. Predictions stay the same only if the gates do (preset `"probe"`,
        coupling `"head_only"`).
        """
        if self.heads.frozen is None:
            own = {id(p) for p in self.heads.parameters()}
            host = ((name, p) for name, p in self.model.named_parameters() if id(p) not in own)
            self.heads.frozen = freeze(self.model, host)

    def unfreeze_host(self) -> None:
        """Undo `freeze_host`: what was trainable before trains again, norms follow the mode of the model."""
        if self.heads.frozen is not None:
            thaw(self.model, self.heads.frozen)
            self.heads.frozen = None

    def reset_classes(self, num_classes: int) -> None:
        """Make the heads ready for another task: new class matrices `W2`, drawn as at the start; `W1` stays.

        Optimisers hold the old matrices: make a new one afterwards. The model's own classifier is not touched; where
        it has another number of classes, the heads predict.

        Args:
            num_classes: Of the new task.
        """
        reset(self.heads, checked_classes(num_classes))

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
        return strip(self.heads, what_predicts(self.heads))

    def fold(self, predict_from: Source | None = None) -> nn.Module:
        """A self-contained inference module that predicts the same; the model stays as it is.

        Each block becomes a few plain operations inside its unit (mean, ReLU, matrix product, sigmoid, multiplication),
        so the result can be exported with `torch.export` and to ONNX.

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
        return fold(self.model, self.heads, what_predicts(self.heads, predict_from))

    def fold_static(
        self, data: Any, test: Any = None, predict_from: Source | None = None
    ) -> tuple[nn.Module, StaticFoldReport]:
        """Like `fold`, with every gate fixed at its mean over some data: no gates are computed any more. Approximate.

        A fixed gate is absorbed by the batch norm of a projection shortcut; elsewhere it is a factor per channel.

        Args:
            data: A batch or a loader to average over; a loader is gone through twice.
            test: Other data on which to measure what changed.
            predict_from: As for `fold`.

        Returns:
            The module, and how far its class scores are from those of the model.
        """
        return fold_static(self.model, self.heads, what_predicts(self.heads, predict_from), data, test)
