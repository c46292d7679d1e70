"""The score: units of its parts, and metrics that can be raced by."""

import math
from types import SimpleNamespace

import pytest
import torch

from mhex.recommend.score import score_of


def test_a_unit_is_the_root_of_the_mean_variance_between_methods():
    """On one image methods are 2 apart, on the other not at all; a third one counts for one method alone."""
    score = score_of({"faithfulness": 1, "stability": 1}, "image", seed=0)
    rows = {
        "a": torch.tensor([[1.0, 5.0, 5.0], [3.0, 5.0, 5.0], [9.0, 9.0, 9.0]]).double(),
        "b": torch.tensor([[-1.0, 5.0, 5.0], [3.0, 5.0, 5.0], [math.nan] * 3]).double(),
    }
    units = score.with_units(SimpleNamespace(values=lambda label: (None, rows)), ["a", "b"]).units
    assert units["faithfulness"] == pytest.approx(math.sqrt(0.5))
    assert units["stability"] == 0.01  # all are the same by it, and rounding must not decide


def test_areas_at_random_levels_can_be_raced_by():
    score = score_of(("balanced", {"grid": "random"}), "image", seed=3)
    sweep = score.metric.metric.protocol.sweep
    assert (sweep.grid, sweep.steps, sweep.seed) == ("random", 8, 3)
    assert "grid=random" in score.words
    assert score_of("balanced", "image", seed=3).metric.metric.protocol.sweep.grid == "even"
    assert score_of("deletion:quick", "image", seed=0).metric.metric.protocol.grid == "random"
