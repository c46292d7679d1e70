"""A running average of a model's weights, kept as tensors by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from mhex.train.parameters import HEADS


class Average:
    """Exponential moving average of a model's state, batch statistics too; counters and settings are copied.

    It holds tensors and no second model, since a model with explainer heads cannot be copied.

    Args:
        model: Whose state is averaged; the average begins as a copy.
        decay: Share of the old average that each step keeps. Early steps keep less, as in timm: 1 - step^(-2/3).
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        # What heads keep beside their weights is the strength of their gates, which a schedule sets.
        self._copied = {name for name, _ in model.named_buffers() if name.startswith(HEADS)}
        self.state = {name: value.detach().clone() for name, value in model.state_dict().items()}

    def decay_at(self, step: int) -> float:
        """Share that the step keeps, counted from 0."""
        return min(self.decay, 1 - step ** (-2 / 3)) if step > 1 else 0.0

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Take in the model's state after a step, counted from 0."""
        weight = 1 - self.decay_at(step)
        for name, value in model.state_dict().items():
            kept = self.state[name]
            if kept.is_floating_point() and name not in self._copied:
                kept.lerp_(value.to(kept.dtype), weight)
            else:
                kept.copy_(value)

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take over a stored average."""
        for name, kept in self.state.items():
            kept.copy_(state[name])

    @contextmanager
    def inside(self, model: nn.Module) -> Iterator[None]:
        """Put the average into the model for a while."""
        own = {name: value.detach().clone() for name, value in model.state_dict().items()}
        model.load_state_dict(self.state)
        try:
            yield
        finally:
            model.load_state_dict(own)
