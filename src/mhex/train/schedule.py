"""The course of the learning rate, as a factor of its highest value at each step."""

from __future__ import annotations

import math

# Of the one-cycle policy: the first rate is a 25th of the highest, the last one 10,000 times smaller than the first.
_FIRST = 1 / 25
_LAST = _FIRST / 1e4


def rate_factor(schedule: str, step: int, steps: int, warmup: float, floor: float = 0.0) -> float:
    """Factor of the learning rate.

    Args:
        schedule: ``"cosine"``, ``"linear"`` or ``"constant"`` after a straight rise; ``"one-cycle"`` rises and falls
            along half cosines.
        step: Counted from 0.
        steps: Of the whole run.
        warmup: Share of the steps that raise the rate.
        floor: Factor at the end, where the rate falls.
    """
    rise = round(warmup * steps)
    if schedule == "one-cycle":
        top = max(rise - 1, 0)
        if step < top:
            return _half_cosine(_FIRST, 1.0, step / top)
        return _half_cosine(1.0, max(_LAST, floor), (step - top) / max(1, steps - 1 - top))
    if step < rise:
        return (step + 1) / rise
    done = (step - rise) / max(1, steps - rise)
    if schedule == "cosine":
        return _half_cosine(1.0, floor, done)
    return 1.0 if schedule == "constant" else 1 - (1 - floor) * done


def _half_cosine(begin: float, end: float, done: float) -> float:
    return end + (begin - end) * 0.5 * (1 + math.cos(math.pi * done))
