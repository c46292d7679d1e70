"""Methods beside metrics: controls, rows, tables."""

from mhex.bench.controls import CONTROLS, Control, control

__all__ = ["CONTROLS", "Control", "control"]
