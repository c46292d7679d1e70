"""Do gate and head of a block pull the same way? What a scaffold can say of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from mhex.heads.collaboration import Collaboration, collaboration
from mhex.heads.confidence import CellMode, ConfidenceMap, confidence_map
from mhex.heads.correlation import Study, Values, collaboration_study
from mhex.heads.held import Held


class Analysis(Held):
    """Part of `Scaffold`."""

    def collaboration(
        self, inputs: Any, labels: Tensor | None = None, *, chunk: int = 32, progress: bool = False
    ) -> Collaboration:
        """Cosine, per sample and block, of how the gate and how the head pull the matrix that they share.

        Args:
            inputs: A tensor, a dictionary of the model's arguments, a loader of labelled batches, or one pair
                `(inputs, labels)` of tensors.
            labels: As for `loss`; None for a loader or a pair, or if the dictionary holds `labels`.
            chunk: The most samples at once; memory grows with it and not with their number.
            progress: Whether to draw a progress bar.

        Example:
            >>> import torch, torchvision, mhex
            >>> scaffold = mhex.attach(torchvision.models.resnet18(num_classes=8), 8)
            >>> scaffold.collaboration(torch.rand(2, 3, 64, 64), torch.tensor([3, 7])).cosine.shape
            torch.Size([2, 7])
        """
        return collaboration(self.host, inputs, labels, chunk, progress)

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
        return collaboration_study(self.host, loader, against, level, chunk, progress)
