"""Metrics that judge explanations: one file each, a pure function and a torchmetrics class."""

from mhex.metrics.registry import MetricSpec, all_metrics, get_metric, list_metrics, register_metric

__all__ = ["MetricSpec", "all_metrics", "get_metric", "list_metrics", "register_metric"]
