"""Methods beside metrics: controls, rows, tables."""

from mhex.judge.controls import CONTROLS, Control, control
from mhex.judge.evaluation import evaluate
from mhex.judge.report import Report

__all__ = ["CONTROLS", "Control", "Report", "control", "evaluate"]
