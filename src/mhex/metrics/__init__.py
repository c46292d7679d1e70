"""Metrics that judge explanations: one file each, a pure function and a torchmetrics class."""

from mhex.metrics.base import JudgedMaps, PerImage
from mhex.metrics.case import Case
from mhex.metrics.protocols import Protocol, Scored
from mhex.metrics.registry import MetricSpec, all_metrics, get_metric, list_metrics, register_metric

__all__ = ["Case", "JudgedMaps", "MetricSpec", "PerImage", "Protocol", "Scored"]
__all__ += ["all_metrics", "get_metric", "list_metrics", "register_metric"]
