"""Intervals, paired tests, ranking and correlation, over images."""
