"""Results of runners are those that a protocol speaks of; others are refused before they are counted."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from mhex.errors import ArgumentError, ArgumentTypeError
from mhex.metrics.protocols import Protocol
from mhex.perturb import SweepResult

_FREE = ("orders",)  # a result says itself which order it lacks, and more than is read does no harm


def agreed(result: Any, protocol: Protocol, name: str) -> Any:
    """A result, once it is known to be made as the protocol says; a sweep of more steps is read on the coarser grid.

    Args:
        result: What a metric is given. Maps and classes, and what was made by hand, cannot be checked.
        protocol: Of the metric.
        name: Of the metric's class, for the message.
    """
    made = getattr(result, "runner", None)
    if made is None:
        return result
    wanted = next((one for one in protocol.passes if type(one) is type(made)), None)
    if wanted is None:
        known = " and ".join(type(one).__name__ for one in protocol.passes) or "no runner"
        raise ArgumentTypeError(f"Expected results of {known} for {name}, but got one of {type(made).__name__}.")
    if isinstance(result, SweepResult) and made.steps > wanted.steps and made.steps % wanted.steps == 0:
        result = result.every(made.steps // wanted.steps)
        made = result.runner
    other = differences(made, wanted)
    if other:
        listed = ", ".join(f"{part}={got!r} (not {want!r})" for part, got, want in other)
        raise ArgumentError(
            f"Expected results that were made as the protocol of {name} says, but these were made with {listed}. Make "
            "them by a runner of `metric.protocol.passes`, or give the metric the same parts."
        )
    return result


def differences(made: Any, wanted: Any) -> list[tuple[str, Any, Any]]:
    """Parts of two runners of one kind that differ: name, one and the other."""
    found: list[tuple[str, Any, Any]] = []
    for part in fields(wanted):
        first, second = getattr(made, part.name), getattr(wanted, part.name)
        if is_dataclass(second):
            found += differences(first, second)
        elif first != second and part.name not in _FREE:
            found.append((part.name, first, second))
    return found
