"""Residual connections of a model: finding them, and putting modules where their branches meet."""
