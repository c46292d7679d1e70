"""Where the numbers of a pass lie on the image or the text."""

from __future__ import annotations

from torch import Tensor

from mhex.capture.anatomy import Anatomy, grid_of, layout_of, without_prefix
from mhex.capture.batch import Batch
from mhex.capture.precision import full
from mhex.errors import CaptureError


class Layout:
    """Rearranges scores and features of one batch.

    Attributes:
        anatomy: Of the model.
        batch: The inputs.
    """

    anatomy: Anatomy
    batch: Batch

    def as_maps(self, tensor: Tensor) -> Tensor:
        """Rearrange features, or their gradient, to (B, C, h, w), at least float32; prefix tokens are dropped."""
        tensor = full(tensor.detach())
        if tensor.dim() == 3:
            if self.anatomy.sequence_first:
                tensor = tensor.transpose(0, 1)
            return self.on_grid(tensor.mT)
        if tensor.dim() != 4:
            raise CaptureError(
                f"Expected feature maps of 4 axes or tokens of 3, but the layer gave {tuple(tensor.shape)}."
            )
        layer = self.anatomy.features
        layout = None if layer is None else layer.layout
        layout = layout or layout_of(tensor.shape, self.batch.pixels.shape)
        if layout is None:
            raise CaptureError(
                f"Expected feature maps with the aspect ratio of the image, but the layer gave {tuple(tensor.shape)}; "
                "name another one with layer=."
            )
        return tensor.permute(0, 3, 1, 2) if layout == "nhwc" else tensor

    def grid(self) -> tuple[int, int]:
        """Rows and columns of the patch grid."""
        return self.anatomy.grid(*self.batch.pixels.shape[-2:])

    def on_grid(self, scores: Tensor) -> Tensor:
        """Scores of tokens (..., N) as they lie: (..., h, w) without prefix tokens, or (..., T) with 0 at padding.

        Maps (B, K, h, w) stay as they are. Where the patch size is not known, the tokens must fill a grid of the
        shape of the image.
        """
        if scores.dim() == 4:
            return scores
        if self.batch.modality == "text":
            if self.batch.real is None or scores.shape[-1] != self.batch.real.shape[1]:
                raise CaptureError(f"Expected one score per token of the text, but the layer has {scores.shape[-1]}.")
            return scores.where(self.batch.real.reshape(-1, *[1] * (scores.dim() - 2), scores.shape[-1]), 0.0)
        if self.anatomy.patch is None:
            return scores.reshape(*scores.shape[:-1], *grid_of(scores.shape[-1], self.batch.pixels.shape))
        rows, columns = self.grid()
        patches = without_prefix(scores, self.anatomy.prefix_tokens, rows * columns)
        return patches.reshape(*scores.shape[:-1], rows, columns)

    def place(self, scores: Tensor) -> Tensor:
        """Put token scores (B, N) where they belong: (B, h, w) for images, (B, T) for text with special tokens at 0.

        Scores that are a map already, (B, h, w), stay as they are.
        """
        if scores.dim() == 3:
            return scores
        if self.batch.modality == "text":
            return scores.where(self.batch.spatial(scores.shape[1], 0), 0.0)
        return self.on_grid(scores)
