from __future__ import annotations

from pathlib import Path

import pytest
from cli_helpers import Run, one_sentence

import mhex
from support.tiny_models import pictures, tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs")
    metrics = [("deletion", {"reference": "zero", "steps": 4})]
    mhex.evaluate(tiny("cnn"), pictures(3), ["gradcam"], metrics, out=path / "cnn", pictures=2)
    return path


def test_a_page_in_the_folder(run: Run, folder: Path) -> None:
    result = run("report", folder / "cnn")
    assert result.exit_code == 0, result.output
    page = (folder / "cnn" / "report.html").read_text(encoding="utf-8")
    assert str(folder / "cnn" / "report.html") in result.stdout
    assert "<h1>Evaluation: cnn</h1>" in page
    assert "Image 1" in page
    assert run("report", folder / "cnn").exit_code == 0  # the page of before is in nobody's way


def test_options(run: Run, folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "new" / "page.html"
    result = run("report", folder, "--out", file, "--title", "Mine", "--images", "1")
    assert result.exit_code == 0, result.output
    page = file.read_text(encoding="utf-8")
    assert "<h1>Mine</h1>" in page
    assert "Image 0" not in page
    assert "Image 1" in page


def test_mistakes_are_told_in_one_sentence(run: Run, folder: Path, tmp_path: Path) -> None:
    assert "got no rows" in one_sentence(run("report", tmp_path))
    assert "Expected a folder with evaluations at" in one_sentence(run("report", tmp_path / "nowhere"))
    assert "after --images, but got '1,x'" in one_sentence(run("report", folder, "--images", "1,x"))
    assert "the folder has [0, 1]" in one_sentence(run("report", folder, "--images", "7"))
    (tmp_path / "file").write_text("")
    assert "Cannot write" in one_sentence(run("report", folder, "--out", tmp_path / "file" / "page.html"))
