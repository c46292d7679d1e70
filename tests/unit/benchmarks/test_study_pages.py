"""What the pages of studies share: intervals, the sentence on how they were made, pictures of a bounded size."""

from __future__ import annotations

import argparse
import math
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

import study_page
from mhex.viz.sheet import Sheet
from study_charts import _APART, _HEIGHT, _spread, band_figure, bands_of
from study_page import interval_of, made_by, save_picture, table


def test_an_interval_holds_the_mean_and_leaves_out_what_is_not_finite() -> None:
    values = torch.tensor([1.0, 2.0, 3.0, 4.0, math.nan])
    found = interval_of(values)
    assert found.count == 4
    assert found.mean == pytest.approx(2.5)
    assert 1 <= found.low < 2.5 < found.high <= 4
    assert found.above
    assert not found.below
    assert interval_of(-values).below


def test_one_value_has_no_interval() -> None:
    found = interval_of(torch.tensor([2.0]))
    assert found.mean == 2
    assert math.isnan(found.low)
    assert math.isnan(found.high)


def test_the_command_is_told_without_folders_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/study.py"])
    wanted = argparse.Namespace(device="cpu", images=3, seed=7, out=Path("/somewhere/docs"), suite=None)
    said = made_by(wanted, "3 photos", 12.3)
    assert "`python benchmarks/study.py --device cpu --images 3 --seed 7`: 3 photos, seed 7; 12 s on `cpu`" in said
    assert "torch" in said
    assert "somewhere" not in said


def test_a_table_is_markdown() -> None:
    assert table(["a", "b"], [[1, "x"]]) == "| a | b |\n|---|---|\n| 1 | x |"


def noisy_sheet() -> Sheet:
    sheet = Sheet(3, 3)
    sheet.paint(0, 0, 3, 3, np.random.default_rng(0).integers(0, 255, (300, 300, 3), dtype=np.uint8), "noise")
    return sheet


def test_pictures_are_drawn_with_fewer_dots_until_they_are_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study_page, "MOST_BYTES", 40_000)
    said = save_picture(noisy_sheet(), tmp_path / "images" / "noise.jpg", "noise")
    assert said == "![noise](../images/noise.jpg)"
    assert 0 < (tmp_path / "images" / "noise.jpg").stat().st_size <= 40_000


def test_a_picture_that_stays_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study_page, "MOST_BYTES", 100)
    with pytest.raises(SystemExit, match="draw fewer"):
        save_picture(noisy_sheet(), tmp_path / "noise.jpg", "noise")


def test_bands_follow_the_samples() -> None:
    middle, low, high = bands_of({"a": torch.tensor([[0.0, 1.0], [2.0, 1.0]])})["a"]
    assert list(middle) == [1, 1]
    assert low[0] == 0
    assert high[0] == 2
    assert low[1] == high[1] == 1


def test_names_at_the_ends_of_curves_do_not_lie_on_each_other() -> None:
    placed = sorted(_spread({"a": 0.99, "b": 0.995, "c": 1.0, "d": 0.1}, (0.0, 1.0)).values())
    assert all(later - earlier >= _APART - 1e-9 for earlier, later in pairwise(placed))
    assert placed[-1] <= _HEIGHT + 1e-9


def test_a_band_figure_draws_a_line_for_each_name_in_each_panel() -> None:
    bands = {"a": ([1.0, 2.0], [0.5, 1.5], [1.5, 2.5]), "random": ([0.0, 0.0], [-1.0, -1.0], [1.0, 1.0])}
    sheet = band_figure("Title", [1, 2], {"first": bands, "second": bands}, "below", "note", controls=["random"])
    panels = [axes for axes in sheet.axes if axes.get_label() in ("first", "second")]
    assert len(panels) == 2
    for axes in panels:
        drawn = [list(line.get_ydata()) for line in axes.lines]
        assert [1.0, 2.0] in drawn
        assert [0.0, 0.0] in drawn
