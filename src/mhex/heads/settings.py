"""How a set of heads is built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from mhex.capture import Outputs
from mhex.errors import ArgumentError, ArgumentTypeError
from mhex.heads.block import Coupling, GateTarget, Preset, Relu

Source = Literal["classifier", "last_head", "sum"]


@dataclass(frozen=True)
class Settings:
    """How a set of heads is built; saved with their weights.

    Attributes:
        num_classes: n.
        junctions: Names of the residual connections that carry a block, as the model is written; `Heads.names` has
            them in the order in which they run.
        channels: Width of each.
        preset: How the gates start.
        coupling: How gate and head share their matrix.
        gate_target: What the gate multiplies.
        relu: Whether the ReLU comes after or before the pooling.
        exclude_special: Whether class and separator tokens are left out of the pooling.
        multi_label: Whether a sample may have several classes.
        outputs: What the host returns; None if calls are to show it.
    """

    num_classes: int
    junctions: tuple[str, ...]
    channels: tuple[int, ...]
    preset: Preset = "identity"
    coupling: Coupling = "shared"
    gate_target: GateTarget = "shortcut"
    relu: Relu = "post"
    exclude_special: bool = False
    multi_label: bool = False
    outputs: Outputs | None = None


def checked_classes(value: Any) -> int:
    """A number of classes, or an error that says what is wrong with it."""
    if value is None:
        raise ArgumentTypeError(
            "Expected num_classes, the number of classes of the heads; only heads that were saved bring it along: "
            "mhex.attach(model, weights='heads.safetensors')."
        )
    if not isinstance(value, int) or isinstance(value, bool):
        raise ArgumentTypeError(f"Expected num_classes to be a whole number, but got {value!r}.")
    if value < 1:
        raise ArgumentError(f"Expected at least one class, but got num_classes={value}.")
    return value
