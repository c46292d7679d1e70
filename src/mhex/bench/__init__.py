"""Methods beside metrics: controls, rows, tables."""

from mhex.bench.controls import CONTROLS, Control, control
from mhex.bench.judging import evaluate
from mhex.bench.recommendation import Recommendation
from mhex.bench.recommending import recommend
from mhex.bench.report import Report

__all__ = ["CONTROLS", "Control", "Recommendation", "Report", "control", "evaluate", "recommend"]
