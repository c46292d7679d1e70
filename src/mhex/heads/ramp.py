"""The way of a gate from 1 to the published one, in training."""

from __future__ import annotations

from numbers import Real
from typing import Any

from mhex.errors import ArgumentError, ArgumentTypeError
from mhex.heads.heads import Heads


def ramp(heads: Heads, step: int, steps: int, share: float) -> None:
    """Set `lambda` of the gates of preset `"warmup"` to `min(1, step / (share * steps))`.

    Args:
        heads: Of the model.
        step: Step of training, counted from 0.
        steps: All of them.
        share: Part of the steps in which `lambda` grows.
    """
    _check("step", step, "a step of training, counted from 0", 0)
    _check("steps", steps, "the number of all steps of training, at least 1", 1)
    _check("share", share, "the part of the steps in which the gate changes, from 0 to 1", 0, 1)
    if heads.settings.preset == "warmup" and heads.settings.coupling != "head_only":
        value = min(1.0, step / max(1.0, share * steps))
        for block in heads.named_blocks().values():
            block.strength.fill_(value)


def _check(name: str, value: Any, meaning: str, low: float, high: float = float("inf")) -> None:
    if not isinstance(value, Real) or value is True or value is False:
        raise ArgumentTypeError(f"Expected {name} to be {meaning}, but got {value!r}.")
    if not low <= float(value) <= high:  # also where it is not a number
        raise ArgumentError(f"Expected {name} to be {meaning}, but got {name}={value!r}.")
