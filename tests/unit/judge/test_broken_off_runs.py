"""Evaluations that were broken off say so, wherever they are shown, and mark no winner."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import mhex
from mhex._schema import build
from mhex.cli.report import folder_page
from mhex.judge import evaluation as judging
from mhex.judge.page import page_of
from mhex.lab.config.suite import Suite
from mhex.lab.suites.page import suite_page
from mhex.lab.suites.stored import SuiteResult, missing_models
from support.suites import suite_dict
from support.tiny_models import pictures, tiny

METHODS = ["gradcam", "layercam"]


def judged(**options: Any) -> mhex.Report:
    data = options.pop("data", pictures(8))
    return mhex.evaluate(tiny("cnn"), data, METHODS, ["compactness"], batch_size=2, **options)


def broken(monkeypatch: pytest.MonkeyPatch, folder: Path, after: int, **options: Any) -> mhex.Report:
    """The report of a run that was stopped after so many methods and batches, controls being the last methods."""
    whole, calls = judging.case_of, 0

    def breaking(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > after:
            raise KeyboardInterrupt
        return whole(*args)

    with monkeypatch.context() as patch:
        patch.setattr(judging, "case_of", breaking)
        with pytest.raises(KeyboardInterrupt):
            judged(out=folder, **options)
    return mhex.Report.load(folder)


def test_it_says_how_far_it_came(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = broken(monkeypatch, tmp_path, 11)
    wanted = (
        "Broken off, or still running: 4 of 8 samples are judged by all of 5 methods and controls and 1 metric. The "
        "same call goes on from there."
    )
    assert report.remarks == [wanted]
    for form in ("text", "markdown", "latex", "html"):
        assert wanted in " ".join(report.table(form).replace("% ", "").split())
    assert wanted in page_of(tmp_path)
    single = mhex.Report.load(report.to_parquet(tmp_path / "rows.parquet"))
    assert single.remarks == report.only(["gradcam"]).remarks == report.merge(report).remarks == [wanted]
    assert judged(out=tmp_path).remarks == []
    assert mhex.Report.load(tmp_path).remarks == []
    assert "Broken off" not in page_of(tmp_path)


def test_no_best_is_marked_where_methods_have_different_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for after, shared in ((11, False), (10, True)):
        report = broken(monkeypatch, tmp_path / str(after), after, data=pictures(16))
        cells = {cell.method: cell for cell in report.summary(50) if not cell.method.startswith("control:")}
        assert (cells["gradcam"].n == cells["layercam"].n) is shared
        assert all(cell.skipped == 0 for cell in cells.values())
        assert sum(counts["compactness"] for counts in report.skipped().values()) == 0
        told = "methods were judged on different samples, so that none is marked" in " ".join(report.table().split())
        assert told is not shared
        if not shared:
            assert not any(cell.marked for cell in cells.values())
            assert " *" not in report.table()


def test_a_number_of_samples_that_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = broken(monkeypatch, tmp_path, 7, data=iter(pictures(8)))
    assert "2 of 4 samples so far are judged by all of 5 methods" in report.remarks[0]
    assert judged(out=tmp_path, data=iter(pictures(8))).remarks == []
    assert mhex.Report.load(tmp_path).remarks == []


def test_another_call_that_did_it_all_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert broken(monkeypatch, tmp_path, 3).remarks
    monkeypatch.setattr("sys.argv", ["another", "command"])
    judged(out=tmp_path, limit=2)
    assert mhex.Report.load(tmp_path).remarks, "two of eight samples are not all"
    judged(out=tmp_path)
    assert mhex.Report.load(tmp_path).remarks == []


def test_folders_that_say_nothing_of_it_are_as_before(tmp_path: Path) -> None:
    judged(out=tmp_path)
    calls = json.loads((tmp_path / "about.json").read_text("utf-8"))
    assert [call["done"] for call in calls] == [8]
    old = [{key: value for key, value in call.items() if key not in ("samples", "done", "lost")} for call in calls]
    (tmp_path / "about.json").write_text(json.dumps(old), "utf-8")
    assert mhex.Report.load(tmp_path).remarks == []


def test_models_of_a_suite_whose_turn_has_not_come(tmp_path: Path) -> None:
    told = {"labels": ["a", "b", "c"], "models": {"a": {}}}
    assert missing_models({**told, "models": {"a": {}, "b": {}, "c": {}}}) == missing_models({"models": {}}) == []
    (line,) = missing_models(told)
    assert line.startswith("Broken off, or still running: 1 of 3 models of this suite are judged, and b, c are not.")
    judged(out=tmp_path / "a")
    (tmp_path / "suite.json").write_text(json.dumps({**told, "suite": {}}), "utf-8")
    assert line in folder_page(tmp_path)


def test_pages_in_markdown_say_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = broken(monkeypatch, tmp_path, 11)
    record: dict[str, Any] = {"images": 4, "target": "predicted", "seconds": 1.0, "device": "cpu", "model": "m"}
    record |= {"data": {"name": "d", "split": None, "form": "single"}, "evaluator": None, "accuracy": None}
    told: dict[str, Any] = {"labels": ["a", "b"], "models": {"a": record}, "versions": {}, "command": "c", "seed": 0}
    result = SuiteResult(build(Suite, suite_dict(), "small"), False, {"a": report}, {**told, "device": "cpu"}, 0)
    page = suite_page(result)
    assert "1 of 2 models of this suite are judged, and b is not." in page
    assert "4 of 8 samples are judged by all of 5 methods and controls" in page
