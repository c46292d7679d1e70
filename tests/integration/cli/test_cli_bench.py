"""`mhex bench`: from a suite file to tables and a page, and its words when something is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
    assert result.exit_code == 3
    assert "1 of 3 suites failed: broken." in result.stderr.splitlines()[-1]
    assert sorted(path.name for path in Path("pages").iterdir()) == ["last.md", "small.md"]
    for name in ("small-quick", "last-quick"):
        assert (Path("runs") / name / "report.html").is_file()
    for words in ("small: tiny-vit: 1 methods and 3 control maps on 2 samples in ", "small: ", "last: tiny-vit: "):
        assert f"mhex: {words}" in result.stderr
    assert not (Path("runs") / "broken-quick" / "suite.json").exists()


def test_only_failures_are_a_mistake(run: Run, suite: Path) -> None:
    names = ("one", "two")
    broken = [write_suite(suite.with_name(f"{n}.yaml"), name=n, models=["zoo:pets-resnet34"]) for n in names]
    result = run("bench", *broken, "--quick", "--out", "runs")
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1] == "mhex: 2 of 2 suites failed: one, two."


def test_ctrl_c_says_where_the_rows_are(run: Run, suite: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mhex.judge import evaluation as judging

    whole, calls = judging.case_of, []

    def interrupt(*args: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return whole(*args)

    monkeypatch.setattr(judging, "case_of", interrupt)
    result = run("bench", suite, "--quick")
    assert result.exit_code == 130
    assert result.stderr.splitlines()[-1] == (
        "mhex: Stopped. Rows of all that is judged so far are in out/bench/small-quick; the same command goes on from "
        "there."
    )
    made = run("report", "out/bench/small-quick")
    assert made.exit_code == 0
    assert made.stderr.startswith("mhex: tiny-vit: Broken off, or still running: 0 of 2 samples are judged by all of 4")
    assert "Broken off, or still running: 0 of 2" in Path("out/bench/small-quick/report.html").read_text("utf-8")
    assert run("bench", suite, "--quick").exit_code == 0
    assert run("report", "out/bench/small-quick").stderr == ""


def test_samples_that_cannot_be_judged_are_told(run: Run, suite: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mhex.lab.datasets.sets import ImageSet

    real = ImageSet.items

    def spoiled(self: Any) -> Any:
        items = real(self)

        def take(place: int) -> Any:
            if place == 0:
                raise OSError("image file is truncated")
            return items[place]

        return type(items)(len(items), take)

    monkeypatch.setattr(ImageSet, "items", spoiled)
    result = run("bench", suite, "--quick", "--page", "page.md")
    assert result.exit_code == 3
    told = "small: tiny-vit: Not judged: 1 sample (sample 0: image file is truncated)."
    assert result.stderr.splitlines()[-1] == f"mhex: {told}"
    assert "1 samples of pets" in result.stdout
    assert "Not judged: 1 sample (sample 0: image file is truncated)." in Path("page.md").read_text("utf-8")
    again = run("bench", suite, "--quick", "--from", "out/bench/small-quick")
    assert again.exit_code == 3
    assert again.stdout == result.stdout


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
    assert "suite.json, which `mhex bench` writes" in one_sentence(run("bench", suite, "--from", "elsewhere"))


def test_all_is_every_packaged_suite() -> None:
    from mhex.cli.bench import read_suites
    from mhex.lab.config.suite import packaged_suites

    assert [suite.name for suite in read_suites(["all", "cdam"]).values()] == list(packaged_suites())


def test_packaged_suites_are_listed(run: Run) -> None:
    result = run("bench", "--list")
    assert result.exit_code == 0
    for words in ("gradtoken-segmentation", "mhex-table3-blood", "zoo:cifar10-vit", "token-f1:che"):
        assert words in result.stdout


def test_mistakes_of_the_command_are_told_in_one_sentence(run: Run, suite: Path) -> None:
    assert "Expected a suite" in one_sentence(run("bench"))
    assert "--page-folder takes the pages" in one_sentence(run("bench", suite, "cdam", "--page", "a.md"))
    assert "Expected --no-tables without pages" in one_sentence(run("bench", suite, "--no-tables", "--page", "a.md"))
    other = suite.with_name("other.yaml")
    other.write_bytes(suite.read_bytes())
    assert "small twice" in one_sentence(run("bench", suite, other))
    assert "Did you mean 'cdam'" in one_sentence(run("bench", "cdan"))
    assert "Expected cpu or cuda" in one_sentence(run("bench", suite, "--device", "tpu"))
    write_suite(suite, metrics=["deletio"])
    assert "small.yaml: metrics[0]: Unknown metric 'deletio'" in one_sentence(run("bench", suite))
    write_suite(suite, models=["zoo:pets-resnet34"])
    assert "mhex models build pets-resnet34" in one_sentence(run("bench", suite))
    assert not Path("out/bench/small/suite.json").exists()
