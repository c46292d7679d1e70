"""Heads without training: closed-form fits on the features of a frozen model."""

from mhex.heads.fitting.accuracy import head_accuracy
from mhex.heads.fitting.report import BlockFit, FitReport
from mhex.heads.fitting.run import Method, fit_heads

__all__ = ["BlockFit", "FitReport", "Method", "fit_heads", "head_accuracy"]
