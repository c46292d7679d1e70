"""Methods beside metrics: controls, rows, tables, pages."""

from mhex.bench.controls import CONTROLS, Control, control
from mhex.bench.judging import evaluate
from mhex.bench.page import page_of
from mhex.bench.recommendation import Recommendation
from mhex.bench.recommending import recommend
from mhex.bench.report import Report

__all__ = ["CONTROLS", "Control", "Recommendation", "Report", "control", "evaluate", "page_of", "recommend"]
