"""Targets beyond classes on the command line: concepts and regressions; diagnostics, and the band of many methods."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from cli_helpers import FAST, Run, one_sentence
from PIL import Image

import mhex
from mhex import _progress
from mhex.cli import _console
from mhex.methods import all_methods
from mhex.viz import Canvas
from mhex.viz.captions import number

# Few passes of the methods that make many.


@pytest.fixture
def concepts(zoo: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Two concept files of the stand-in for pets-vit."""
    bundle = mhex.load("zoo:pets-vit")
    files = []
    for name, colour in (("fur", "brown"), ("sky", "blue")):
        photos = [Image.new("RGB", (40, 40), colour), Image.linear_gradient("L").convert("RGB")]
        files.append(tmp_path / f"{name}.safetensors")
        mhex.Concept.from_examples(bundle, photos, name=name).save(files[-1])
    return files[0], files[1]


def test_a_concept_is_a_target(run: Run, concepts: tuple[Path, Path], cat: Path, tmp_path: Path) -> None:
    out = tmp_path / "o"
    result = run("explain", cat, "--method", "cdam", "--target", f"concept:{concepts[0]}", "--out", out)
    assert result.exit_code == 0, result.output
    with Image.open(cat) as photo:
        target = mhex.Concept.load(concepts[0])
        e = mhex.explain(mhex.load("zoo:pets-vit"), photo, "cdam", target)
    assert "similarity" in result.stdout
    assert "probability" not in result.stdout
    (row,) = [line for line in result.stdout.splitlines() if "cat.cdam.png" in line]
    assert "fur" in row
    assert f"{e.target_values(0)[0]:.4g}" in row


def test_several_concepts_by_all_methods(
    run: Run, concepts: tuple[Path, Path], cat: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mhex.viz.save_figure", lambda drawing, path: path.touch())  # drawing takes the longest
    out = tmp_path / "o"
    both = ",".join(f"concept:{file}" for file in concepts)
    result = run("explain", cat, "--method", "all", *FAST, "--target", both, "--out", out, "--html")
    assert result.exit_code == 0, result.output
    lines = [line for line in result.stderr.splitlines() if "left out" in line]
    assert "mhex: left out mhex: it explains classes, not concepts" in lines
    assert [line for line in lines if "guided-backprop: it is defined for ReLU networks" in line]
    assert len(lines) == 2
    assert len(list(out.glob("cat.*.png"))) == len(all_methods()) - 1  # all but these two, and the comparison
    assert "likeness to fur (similarity" in (out / "index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("concept:{fur},Pug", "classes alone, or concepts alone"),
        ("top2,concept:{fur}", "classes alone, or concepts alone"),
        ("concept:{fur},{sky}", "classes alone, or concepts alone"),
        ("concept:nowhere.safetensors", "no file nowhere.safetensors"),
        ("concept:{zoo}/pets-vit.safetensors", "written by Concept.save"),
        ("concept:{zoo}/pets-vit.json", "written by Concept.save"),
        ("concept:", "Expected a file after concept:"),
        ("concept:{out}", "written by Concept.save"),
    ],
)
def test_wrong_concepts_get_one_sentence(
    run: Run, zoo: Path, concepts: tuple[Path, Path], cat: Path, tmp_path: Path, target: str, words: str
) -> None:
    filled = target.format(fur=concepts[0], sky=concepts[1], zoo=zoo, out=tmp_path)
    assert words in one_sentence(run("explain", cat, "--target", filled, "--out", tmp_path / "o"))


def test_a_concept_of_another_model(run: Run, concepts: tuple[Path, Path], cat: Path, tmp_path: Path) -> None:
    wrong = ("--model", "zoo:pets-resnet10t", "--method", "gradcam", "--target", f"concept:{concepts[0]}")
    assert "have 16 entries, but 'fur' has 24" in one_sentence(run("explain", cat, *wrong, "--out", tmp_path / "o"))


def test_regressions(run: Run, zoo: Path, cat: Path, tmp_path: Path) -> None:
    out = tmp_path / "o"
    result = run("explain", cat, "--task", "regression", "--method", "gae,cdam", "--out", out)
    assert result.exit_code == 0, result.output
    assert "output" in result.stdout
    assert "value" in result.stdout
    assert "%" not in result.stdout
    with Image.open(cat) as photo:
        e = mhex.explain(mhex.load("zoo:pets-vit"), photo, task="regression")
    assert e.target.tolist() == [[0, 1, 2, 3, 4, 5]]
    for value in e.target_values(0):
        assert f"{value:.4g}" in result.stdout


def test_a_configuration_may_say_that_outputs_are_values(run: Run, bert_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "stars"
    shutil.copytree(bert_folder, folder)
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**settings, "problem_type": "regression"}), encoding="utf-8")
    asked = ("--text", "a fine film", "--model", f"hf:{folder}", "--method", "cdam", "--out", tmp_path / "o")
    result = run("explain", *asked)
    assert result.exit_code == 0, result.output
    assert "value" in result.stdout
    assert "%" not in result.stdout
    page = (tmp_path / "o" / "index.html").read_text(encoding="utf-8")
    e = mhex.explain(mhex.load(f"hf:{folder}"), ["a fine film"], "cdam")
    assert f"cdam · good</strong> = {number(e.target_values(0)[2])}" in page
    assert "raises the output" in page
    result = run("explain", *asked, "--task", "classification")
    assert "probability" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--task", "regresion"), "classification, multi-label, regression after --task"),
        (("--task", "regression", "--target", "top2"), "regressions rank no classes"),
        (("--task", "regression", "--target", "6"), "from 0 to 5"),
    ],
)
def test_wrong_tasks_get_one_sentence(
    run: Run, zoo: Path, cat: Path, tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    assert words in one_sentence(run("explain", cat, *arguments, "--out", tmp_path / "o"))


def test_the_completeness_gap_is_told(run: Run, zoo: Path, cat: Path, tmp_path: Path) -> None:
    asked = ("--method", "cdam,cdam-integrated", "--target", "Pug,Beagle", "--out", tmp_path / "o")
    result = run("explain", cat, *asked, "--option", "steps=2", "--option", "rule=left")
    assert result.exit_code == 0, result.output
    (line,) = [line for line in result.stderr.splitlines() if "completeness gap" in line]
    with Image.open(cat) as photo:
        e = mhex.explain(mhex.load("zoo:pets-vit"), photo, "cdam-integrated", ["Pug", "Beagle"], steps=2, rule="left")
    gaps = e.diagnostics["completeness_gap"][0].tolist()
    assert line.endswith(
        f"cdam-integrated: completeness gap {gaps[0]:.2g} for Pug (score {e.target_values(0)[0]:.4g}), "
        f"{gaps[1]:.2g} for Beagle (score {e.target_values(0)[1]:.4g})"
    )


def test_one_column_per_method(run: Run, zoo: Path, cat: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heights: list[float] = []  # of the panels of the comparison, which alone is drawn

    def paint(canvas: Canvas, x: float, y: float, width: float, height: float, pixels: object, label: str) -> None:
        heights.extend([round(y, 4)] if label == "panel" else [])

    monkeypatch.setattr(Canvas, "paint", paint)
    monkeypatch.setattr("mhex.viz.save_figure", lambda drawing, path: path)
    asked = ("--method", "all", *FAST, "--target", "top2", "--out", tmp_path / "o")
    assert run("explain", cat, *asked).exit_code == 0
    assert len(set(heights)) == 2, "one row per class"
    assert len(heights) == 2 * (len(all_methods()) - 1)  # the photo for mhex, nothing for guided-backprop


def test_long_work_shows_a_bar_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    from io import StringIO

    from rich.console import Console

    screen = StringIO()
    monkeypatch.setattr(_console, "_watcher", lambda: Console(file=screen, force_terminal=True, width=90))
    assert not _progress.watched()
    with _console.steps(1) as step:
        step("cat: vit-cx")
        assert _progress.watched()
        display = _progress._OPEN.get()
        assert display is not None
        for _ in _progress.track([1, 2, 3], "ViT-CX", enabled=True):
            display.refresh()
        assert len(display.tasks) == 1, "the line of the inner bar is gone"
    assert not _progress.watched()
    assert re.search(r"2/3.*ViT-CX", screen.getvalue())


def test_a_watched_run_asks_for_progress(
    run: Run, zoo: Path, cat: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    real = mhex.explain

    def spy(*args: object, **options: object) -> object:
        asked.append(options["progress"])
        return real(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(mhex, "explain", spy)
    assert run("explain", cat, "--out", tmp_path / "o").stderr == ""
    from rich.console import Console

    monkeypatch.setattr(_console, "_watcher", lambda: Console(stderr=True, force_terminal=True))
    assert run("explain", cat, "--method", "cdam-smooth", "--out", tmp_path / "o").exit_code == 0
    assert asked == [False, True]
    assert torch.is_grad_enabled()
