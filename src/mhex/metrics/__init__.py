"""Metrics that judge explanations: one file each, a pure function and a torchmetrics class."""
