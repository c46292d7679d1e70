"""Heads without training: what a scaffold can do on a frozen model."""

from __future__ import annotations

from typing import Any

from mhex.heads.fitting import FitReport, Method, fit_heads, head_accuracy
from mhex.heads.held import Held


class ClosedForm(Held):
    """Part of `Scaffold`."""

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
