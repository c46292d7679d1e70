"""A model and the heads on it, as long as they are there."""

from __future__ import annotations

from torch import nn

from mhex.capture import unwrap
from mhex.errors import ArgumentError, ArgumentTypeError
from mhex.heads.heads import Heads, heads_of, required_heads


class Held:
    """Part of `Scaffold`: what its other parts work on.

    Attributes:
        model: The model, without wrappers; it stays after `Scaffold.detach`.

    Args:
        model: The model, or a wrapper of it.
    """

    def __init__(self, model: nn.Module) -> None:
        if not isinstance(model, nn.Module):
            raise not_a_model(model)
        self.model = unwrap(model)
        self._heads = required_heads(self.model)

    @property
    def attached(self) -> bool:
        """Whether these heads are still on the model."""
        return heads_of(self.model) is self._heads

    @property
    def heads(self) -> Heads:
        """The heads.

        Raises:
            ArgumentError: They were taken off.
        """
        if not self.attached:
            raise ArgumentError("These heads were detached; attach heads again with mhex.attach(model, num_classes).")
        return self._heads

    @property
    def host(self) -> nn.Module:
        """The model, if it still carries these heads.

        Raises:
            ArgumentError: They were taken off.
        """
        _ = self.heads
        return self.model


def not_a_model(given: object) -> ArgumentTypeError:
    """The error for something that is no module; what holds one, as a bundle of `mhex.load` does, is told apart."""
    holds = isinstance(getattr(given, "model", None), nn.Module)
    advice = "; pass the model that it holds, its attribute .model (bundle.model)" if holds else ""
    return ArgumentTypeError(f"Expected a torch.nn.Module, but got {type(given).__name__}{advice}.")
