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
    html = Path("out/bench/small-quick/report.html").read_text(encoding="utf-8")
    assert "A small suite" in html
    assert "Wrote out/bench/small-quick/report.html." in result.stderr
    again = run("bench", suite, "--quick", "--out", "out/bench/small-quick")
    assert again.stdout == result.stdout


def test_several_suites_go_on_after_one_that_fails(run: Run, suite: Path) -> None:
    broken = write_suite(suite.with_name("broken.yaml"), name="broken", models=["zoo:pets-resnet34"])
    last = write_suite(suite.with_name("last.yaml"), name="last")
    result = run("bench", suite, broken, last, "--quick", "--out", "runs", "--page-folder", "pages")
    assert result.exit_code == 1
    assert "1 of 3 suites failed: broken." in result.stderr.splitlines()[-1]
    assert sorted(path.name for path in Path("pages").iterdir()) == ["last.md", "small.md"]
    for name in ("small-quick", "last-quick"):
        assert (Path("runs") / name / "report.html").is_file()
    for words in ("small: tiny-vit: 1 methods and 3 control maps on 2 samples in ", "small: ", "last: tiny-vit: "):
        assert f"mhex: {words}" in result.stderr
    assert not (Path("runs") / "broken-quick" / "suite.json").exists()


def test_all_missing_models_are_named_at_once(run: Run, suite: Path) -> None:
    models = [
        "zoo:pets-resnet34",
        "zoo:tiny-vit",
        {"name": "zoo:tiny-vit", "label": "b", "evaluator": "zoo:pets-resnet18"},
    ]
    result = run("bench", write_suite(suite, models=models), "--quick")
    assert result.exit_code == 2
    assert "The weights of zoo:pets-resnet34, zoo:pets-resnet18 do not travel with mhex" in " ".join(
        result.stderr.split()
    )
    listed = " ".join(run("bench", "--list").stdout.split())
    assert "to be built" in listed


def test_rows_of_another_machine_are_enough_for_pages(run: Run, suite: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run("bench", suite, "--quick", "--no-tables", "--out", "runs/small-quick")
    assert first.exit_code == 0
    assert not first.stdout
    assert not Path("runs/small-quick/report.html").exists()
    whole = run("bench", suite, "--quick", "--page", "here.md", "--out", "runs/small-quick")
    monkeypatch.setenv("MHEX_DATA", "nothing")
    for file in Path("models").glob("*.safetensors"):
        file.write_bytes(b"")  # nothing can be loaded
    for place in ("runs", "runs/small-quick"):
        again = run("bench", suite, "--quick", "--from", place, "--page", "there.md")
        assert again.exit_code == 0, again.output
        assert again.stdout == whole.stdout
        assert Path("there.md").read_text(encoding="utf-8") == Path("here.md").read_text(encoding="utf-8")
    read_only = run("bench", suite, "--quick", "--from", "runs", "--out", "else")
    assert "Wrote else/report.html." in read_only.stderr
    assert "Expected suite.json in" in one_sentence(run("bench", suite, "--from", "elsewhere"))


def test_all_is_every_packaged_suite() -> None:
    from mhex.bench.suite_files import packaged_suites
    from mhex.cli._bench import jobs_of

    assert [job.suite.name for job in jobs_of(["all", "cdam"])] == list(packaged_suites())


def test_packaged_suites_are_listed(run: Run) -> None:
    result = run("bench", "--list")
    assert result.exit_code == 0
    for words in ("gradtoken-segmentation", "mhex-table3-blood", "zoo:cifar10-vit", "token-f1:che"):
        assert words in result.stdout


def test_mistakes(run: Run, suite: Path) -> None:
    assert "Expected a suite" in one_sentence(run("bench"))
    assert "--page-folder takes the pages" in one_sentence(run("bench", suite, "cdam", "--page", "a.md"))
    assert "Expected --no-tables without pages" in one_sentence(run("bench", suite, "--no-tables", "--page", "a.md"))
    other = suite.with_name("other.yaml")
    other.write_bytes(suite.read_bytes())
    assert "small is there twice" in one_sentence(run("bench", suite, other))
    assert "Did you mean 'cdam'" in one_sentence(run("bench", "cdan"))
    assert "Expected cpu or cuda" in one_sentence(run("bench", suite, "--device", "tpu"))
    write_suite(suite, metrics=["deletio"])
    assert "small.yaml: metrics[0]: Unknown metric 'deletio'" in one_sentence(run("bench", suite))
    write_suite(suite, models=["zoo:pets-resnet34"])
    assert "mhex models build pets-resnet34" in one_sentence(run("bench", suite))
    assert not Path("out/bench/small/suite.json").exists()
