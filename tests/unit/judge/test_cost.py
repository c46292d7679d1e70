"""What an evaluation costs: passes of metrics, and those that were saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mhex
from mhex.judge.page import page_of
from support.tiny_models import pictures, tiny


def test_passes_and_savings_are_counted(tmp_path: Path) -> None:
    """Four maps, both orders of four steps: everything removed is run once for all maps of an image."""
    short = {"reference": "zero", "steps": 4}
    call: Any = (tiny("cnn"), pictures(6), ["gradcam"], [("deletion", short), ("insertion", short)])
    report = mhex.evaluate(*call, batch_size=4, out=tmp_path / "run")
    assert report.cost == {"passes": 6 * (7 + 3 * 6), "saved": 6 * 3}
    assert mhex.Report.load(tmp_path / "run").cost == report.cost
    again = mhex.evaluate(*call, batch_size=4, out=tmp_path / "run")  # nothing is left to be done
    assert again.cost == {"passes": 0, "saved": 0}
    assert mhex.Report.load(tmp_path / "run").cost == report.cost
    assert mhex.Report.load(report.to_parquet(tmp_path / "rows.parquet")).cost == report.cost
    assert mhex.Report.load(report.save(tmp_path / "copy")).cost == report.cost
    assert report.only(metrics=report.metrics[0]).cost == {}  # of a part it is not known
    assert report.merge(again).cost == report.cost
    assert "150 run, 18 saved" in page_of(tmp_path / "run")
