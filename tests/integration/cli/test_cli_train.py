"""`mhex train`: from a recipe file to weights, and its words when something is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_helpers import Run, one_sentence

from support.training import write_blood, write_recipe


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("MHEX_DATA", str(write_blood(tmp_path / "data")))
    monkeypatch.chdir(tmp_path)
    return write_recipe(tmp_path / "small.yaml", train={"epochs": 1})


def test_a_recipe_is_trained_and_measured(run: Run, recipe: Path) -> None:
    result = run("train", recipe, "--set", "train.epochs=2", "--set", "seed=9")
    assert result.exit_code == 0, result.output
    out = Path("out/train/small")
    report = json.loads((out / "report.json").read_text())
    assert len(report["epochs"]) == 2
    assert report["recipe"]["seed"] == 9
    share = 100 * report["test"]["cell"]
    assert result.stdout == f"small: cell {share:.2f} % (test, 16 images); weights, report and logs in {out}\n"
    assert "small: epoch 2 of 2, loss" in result.stderr


def test_ctrl_c_says_what_is_kept(run: Run, recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mhex.lab.train.loop import Loop

    real, stop = Loop.step, [0]

    def interrupt(self: Loop, step: int, *rest: object) -> object:
        if step == stop[0]:
            raise KeyboardInterrupt
        return real(self, step, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Loop, "step", interrupt)
    told = []
    for stop[0] in (0, 1):
        result = run("train", recipe, "--checkpoint-steps", "1")
        assert result.exit_code == 130
        told.append(result.stderr.splitlines()[-1])
    assert told[0].startswith("mhex: Stopped. There is no checkpoint yet, so the same command begins anew;")
    place = Path("out/train/small/checkpoint/step-000000001")
    assert told[1] == (
        f"mhex: Stopped. The last checkpoint, after step 1, is in {place}; the same command goes on from there."
    )
    stop[0] = -1
    assert "going on after step 1" in run("train", recipe).stderr


def test_smoke_needs_and_restart(run: Run, recipe: Path) -> None:
    write_recipe(recipe.parent / "early.yaml", name="early")
    write_recipe(recipe.parent / "late.yaml", name="late", model={"start": "early"})
    sentence = one_sentence(run("train", recipe.parent / "late.yaml", "--smoke"))
    assert "late needs the weights of early" in sentence
    assert "--with-needs" in sentence
    result = run("train", recipe.parent / "late.yaml", "--smoke", "--with-needs")
    assert [line.split(":")[0] for line in result.stdout.splitlines()] == ["early", "late"]
    report = json.loads(Path("out/smoke/late/report.json").read_text())
    assert (len(report["epochs"]), report["steps"]) == (1, 2)
    again = run("train", recipe.parent / "late.yaml", "--smoke", "--with-needs", "--restart")
    assert "early: already there" in again.stderr
    assert "late: already there" not in again.stderr


def test_needs_go_by_the_names_in_the_files(run: Run, recipe: Path) -> None:
    write_recipe(recipe.parent / "first-try.yaml", name="early")
    write_recipe(recipe.parent / "late.yaml", name="late", model={"start": "early"})
    result = run("train", recipe.parent / "late.yaml", "--smoke", "--with-needs")
    assert result.exit_code == 0, result.output
    assert [line.split(":")[0] for line in result.stdout.splitlines()] == ["early", "late"]


def test_packaged_recipes_are_listed(run: Run) -> None:
    result = run("train", "--list")
    assert result.exit_code == 0
    for words in ("blood-mhex-resnet18", "pets-vit", "Small vision transformer", "teacher-a, teacher-b"):
        assert words in result.stdout


def test_mistakes_are_one_sentence(run: Run, recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Expected a recipe" in one_sentence(run("train"))
    assert "There is no recipe file none.yaml" in one_sentence(run("train", "none.yaml"))
    assert "Did you mean 'blood-resnet18'" in one_sentence(run("train", "blod-resnet18"))
    assert "small.yaml: train.epochs should be a whole number of at least 1, not -2." in one_sentence(
        run("train", recipe, "--set", "train.epochs=-2")
    )
    assert "Unknown optimizer" in one_sentence(run("train", recipe, "--set", "train.optimizer=adamm"))
    (recipe.parent / "file").write_text("")
    assert "Cannot write to" in one_sentence(run("train", recipe, "--out", recipe.parent / "file" / "x"))
    assert "test_resnet cannot take 1 sample at 16 px" in one_sentence(run("train", recipe, "--set", "train.batch=1"))
    assert "not 'tset'." in one_sentence(run("train", recipe, "--set", "data.test=tset"))
    assert "which share samples" in one_sentence(run("train", recipe, "--set", "data.test=train"))
    recipe.write_text(recipe.read_text() + "heads:\n")
    assert "small.yaml: the key 'heads' in line" in one_sentence(run("train", recipe))
    recipe.write_text(recipe.read_text().replace("heads:\n", "seed: 6\n"))
    assert "is written twice." in one_sentence(run("train", recipe))
    recipe.write_text(recipe.read_text().replace("\nseed: 6\n", "\n"))
    monkeypatch.setenv("MHEX_DATA", str(recipe.parent / "nowhere"))
    assert "MHEX_DATA names" in one_sentence(run("train", recipe))
