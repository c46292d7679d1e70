"""Another network than the explained one, whose outputs are read."""

from __future__ import annotations

from dataclasses import replace

import torch.nn.functional as F
from torch import Tensor, nn

from mhex.bundle import Bundle
from mhex.errors import ArgumentError
from mhex.zoo._squash import Squash


class Resized(nn.Module):
    """A network that is given its own input size, whatever size comes.

    Args:
        network: Takes pixels (B, C, H, W).
        size: Height and width that it was trained on.
    """

    def __init__(self, network: nn.Module, size: tuple[int, int]) -> None:
        super().__init__()
        self.network, self.size = network, size
        self.eval()

    def forward(self, pixels: Tensor) -> Tensor:
        """Outputs (B, classes) for pixels (B, C, h, w), normalised."""
        found: Tensor = self.network(F.interpolate(pixels, self.size, mode="bilinear", antialias=True))
        return found


def evaluator_of(bundle: Bundle, other: Bundle) -> nn.Module:
    """The other network, ready to read what the explained one is given.

    Args:
        bundle: The explained model.
        other: The network that is read. Where it was trained on another size, inputs are resized for it.

    Raises:
        ArgumentError: It would see other colours, tokens or classes than it was trained on.
    """
    if bundle.class_names != other.class_names:
        raise ArgumentError(f"the evaluator {other.name} knows other classes than {bundle.name}.")
    ours, its = bundle.preprocess, other.preprocess
    if ours == its:
        return other.model
    if (
        isinstance(ours, Squash)
        and isinstance(its, Squash)
        and replace(ours, height=its.height, width=its.width) == its
    ):
        return Resized(other.model, (its.height, its.width))
    raise ArgumentError(
        f"the evaluator {other.name} was trained on other inputs ({its}) than {bundle.name} ({ours}), and both are "
        "given the same; choose one of the same normalisation."
    )
