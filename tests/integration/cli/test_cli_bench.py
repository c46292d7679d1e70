"""`mhex bench`: from a suite file to tables and a page, and its words when something is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_helpers import Run, one_sentence

from support.suites import write_models, write_pets, write_suite


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("MHEX_DATA", str(write_pets(tmp_path / "data")))
    monkeypatch.setenv("MHEX_MODELS", str(write_models(tmp_path / "models")))
    monkeypatch.chdir(tmp_path)
    return write_suite(tmp_path / "small.yaml")


def test_a_suite_is_run_and_a_page_written(run: Run, suite: Path) -> None:
    result = run("bench", suite, "--quick", "--page", "pages/small.md")
    assert result.exit_code == 0, result.output
    assert "tiny-vit: zoo:tiny-vit, breed 16.7 %, cat dog 50.0 % (test, 12 images); 2 samples of pets" in result.stdout
    assert "rollout" in result.stdout
    assert "±" in result.stdout
    assert (Path("out/bench/small-quick") / "suite.json").is_file()
    assert "in out/bench/small-quick." in result.stderr
    page = Path("pages/small.md").read_text(encoding="utf-8")
    assert "Made by `mhex bench small.yaml --quick`, in its quick form" in page
    again = run("bench", suite, "--quick", "--out", "out/bench/small-quick")
    assert again.stdout == result.stdout


def test_packaged_suites_are_listed(run: Run) -> None:
    result = run("bench", "--list")
    assert result.exit_code == 0
    for words in ("gradtoken-segmentation", "mhex-table3-blood", "zoo:cifar10-vit", "token-f1:che"):
        assert words in result.stdout


def test_mistakes(run: Run, suite: Path) -> None:
    assert "Expected a suite" in one_sentence(run("bench"))
    assert "Did you mean 'cdam'" in one_sentence(run("bench", "cdan"))
    assert "Expected cpu or cuda" in one_sentence(run("bench", suite, "--device", "tpu"))
    write_suite(suite, metrics=["deletio"])
    assert "small.yaml: metrics[0]: Unknown metric 'deletio'" in one_sentence(run("bench", suite))
    write_suite(suite, models=["zoo:pets-resnet34"])
    assert "mhex models build pets-resnet34" in one_sentence(run("bench", suite))
    assert not Path("out/bench/small/suite.json").exists()
