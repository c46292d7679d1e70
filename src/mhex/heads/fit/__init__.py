"""Heads without training: closed-form fits on the features of a frozen model."""

from mhex.heads.fit.logistic import Options
from mhex.heads.fit.run import BlockFit, FitReport, Method, fit_heads, head_accuracy

__all__ = ["BlockFit", "FitReport", "Method", "Options", "fit_heads", "head_accuracy"]
