"""Heads without training: closed-form fits on the features of a frozen model."""

from mhex.heads.fit.report import BlockFit, FitReport, head_accuracy
from mhex.heads.fit.run import Method, fit_heads

__all__ = ["BlockFit", "FitReport", "Method", "fit_heads", "head_accuracy"]
