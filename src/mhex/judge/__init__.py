"""Methods beside metrics: controls, rows, tables."""

from mhex.judge.controls import CONTROLS, Control, control
from mhex.judge.evaluate import evaluate
from mhex.judge.report import Report

__all__ = ["CONTROLS", "Control", "Report", "control", "evaluate"]
