"""The books of relevance in one ruled pass, and how its tensors are laid out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from mhex.errors import CaptureError


class Books:
    """Sums over samples, and what was lost on the way.

    Args:
        size: Number of samples B.
        relevance: Whether the backward pass carries relevance itself, or a gradient.
    """

    def __init__(self, size: int, relevance: bool) -> None:
        self.size, self.relevance = size, relevance
        self.sequence_first = False  # tensors of three axes may be laid out (N, B, D)
        self.turned = self.straightened = False  # they are, or are not, where the pass is now
        self.everywhere = False  # the backward pass has reached most tokens
        self.lost: Tensor | None = None

    def incoming(self, carried: Tensor, value: Tensor) -> Tensor:
        """Relevance of a value, from what the backward pass carries to it."""
        return carried if self.relevance else carried * value

    def total(self, tensor: Tensor) -> Tensor:
        """Sum over everything but samples, (B,). Windows of a sample may lie one after the other on the first axis."""
        return self._per_sample(tensor, torch.sum)

    def mass(self, tensor: Tensor) -> Tensor:
        """Sum of absolute values over everything but samples, (B,)."""
        return self._per_sample(tensor.abs(), torch.sum)  # faster than a norm on a CPU

    def _per_sample(self, tensor: Tensor, reduce: Callable[..., Tensor]) -> Tensor:
        if self._second(tensor):
            return reduce(tensor, dim=(0, 2))
        if tensor.dim() == 0 or tensor.shape[0] % self.size:
            raise CaptureError(f"Expected a tensor of {self.size} samples, but saw one of {tuple(tensor.shape)}.")
        tensor = tensor[:, None] if tensor.dim() == 1 else tensor
        rows = reduce(tensor, dim=tuple(range(1, tensor.dim())))
        return rows if rows.shape[0] == self.size else reduce(rows.reshape(self.size, -1), dim=1)

    def spread(self, samples: Tensor, like: Tensor) -> Tensor:
        """One number per sample, (B,), laid out so that it multiplies a tensor."""
        if self._second(like):
            return samples.reshape(1, self.size, *[1] * (like.dim() - 2))
        return samples.repeat_interleave(like.shape[0] // self.size).reshape(-1, *[1] * (like.dim() - 1))

    def _second(self, tensor: Tensor) -> bool:
        """True of a tensor laid out (N, B, D)."""
        if tensor.dim() != 3 or tensor.shape[1] != self.size or self.size == 1:
            return False
        if self.sequence_first and not self.turned and tensor.shape[0] == self.size and not self.straightened:
            raise CaptureError(
                f"Expected another batch size than {self.size}, because there are as many tokens and the model lays "
                "its tensors out as (tokens, samples, width) in places: samples cannot be told from tokens."
            )
        return self.turned or (not self.straightened and (self.sequence_first or tensor.shape[0] % self.size != 0))

    @contextmanager
    def straight(self) -> Iterator[None]:
        """Inside, tensors are laid out (B, N, D)."""
        before, self.turned, self.straightened = self.turned, False, True
        try:
            yield
        finally:
            self.turned, self.straightened = before, False

    def reached(self, carried: Tensor) -> Tensor | None:
        """Numbers of the tokens that a backward pass has reached, where they are few; None where all are better taken.

        A head that reads the class token sends nothing to the others before the last attention.
        """
        if self.everywhere or self.sequence_first or carried.dim() != 3 or len(carried) != self.size:
            return None
        tokens = carried.any(-1).any(0)
        self.everywhere = 2 * int(tokens.sum()) > len(tokens)
        return None if self.everywhere else tokens.nonzero()[:, 0]

    def settle(self) -> Tensor | None:
        """What was lost since the last time, (B,); None if nothing was."""
        lost, self.lost = self.lost, None
        return lost

    def lose(self, relevance: Tensor) -> None:
        """Note relevance that constants of the model (biases, position embeddings, class tokens) have absorbed."""
        share = self.total(relevance)
        self.lost = share if self.lost is None else self.lost + share
