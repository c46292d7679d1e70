"""`mhex recommend`: data in every form, weights, files, and mistakes in one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_helpers import Run, one_sentence
from PIL import Image

WANTED = ("--model", "zoo:pets-resnet10t", "--method", "gradcam,layercam", "--budget", "5 min", "--images", "2")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for number, name in enumerate(("cat/a", "cat/b", "dog/a", "dog/b")):
        path = tmp_path / "pets" / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.linear_gradient("L").rotate(90 * number).convert("RGB").save(path)
    return tmp_path / "pets"


def test_a_folder_and_what_is_written(run: Run, zoo: Path, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = run("recommend", *WANTED, "--data", photos, "--out", out, "--score", "faithfulness=3,stability=1")
    assert result.exit_code == 0
    assert "methods on 2 samples" in result.stdout
    assert "Score: 0.75 faithfulness" in result.stdout
    assert "control:random" in result.stdout
    told = json.loads((out / "recommendation.json").read_text("utf-8"))
    assert told["method"] in ("gradcam", "layercam")
    assert {line["method"] for line in told["table"]} >= {"gradcam", "layercam", "control:sobel"}
    assert f"Page: {out / 'recommendation.html'}" in result.stdout
    assert "data:image/jpeg" in (out / "recommendation.html").read_text("utf-8")
    made = run("report", out)
    assert made.exit_code == 0
    assert (out / "report.html").is_file()
    assert f"Which method to use is said in {out / 'recommendation.html'}." in made.stdout


def test_a_damaged_photo_is_told_and_the_race_goes_on(run: Run, zoo: Path, photos: Path) -> None:
    damaged = photos / "cat" / "a.png"
    damaged.write_bytes(damaged.read_bytes()[:300])
    wanted = [*WANTED[:-2], "--score", "compactness"]
    result = run("recommend", *wanted, "--data", photos)
    assert result.exit_code == 3
    assert "methods on 3 samples" in result.stdout
    warning, line = result.stderr.splitlines()
    assert "labels of the data are taken as class numbers" in warning  # the model has no classes of these names
    assert line.startswith("mhex: Not judged: 1 sample (sample ")
    assert "a.png cannot be decoded" in line
    for path in photos.rglob("*.png"):
        path.write_bytes(b"")
    assert "none of 4 can" in one_sentence(run("recommend", *wanted, "--data", photos))


def test_ctrl_c_says_that_nothing_is_kept(run: Run, zoo: Path, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("mhex.recommend", interrupt)
    result = run("recommend", *WANTED, "--data", photos)
    assert result.exit_code == 130
    assert result.stderr.startswith("mhex: Stopped. A race has no answer before its end, so nothing is kept;")


def test_a_table_and_another_metric(run: Run, zoo: Path, photos: Path) -> None:
    table = photos / "photos.csv"
    table.write_text("image,label\ncat/a.png,cat\ndog/b.png,dog\n", encoding="utf-8")
    result = run("recommend", *WANTED, "--data", f"csv:{table}", "--score", "compactness", "--method", "gradcam")
    assert result.exit_code == 0
    assert "Score: compactness" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--data", "petz"), "Did you mean 'pets'"),
        (("--budget", "soon"), "2 min"),
        (("--score", "faithfulness=much"), "NAME=WEIGHT"),
        (("--score", "inserted"), "insertion"),
        (("--method", "gradcan"), "gradcam"),
        (("--device", "tpu"), "cpu or cuda"),
    ],
)
def test_mistakes_are_told_in_a_sentence(
    run: Run, zoo: Path, photos: Path, arguments: tuple[str, str], words: str
) -> None:
    given = dict(zip(WANTED[::2], WANTED[1::2], strict=True)) | {"--data": str(photos)} | dict([arguments])
    assert words in one_sentence(run("recommend", *(part for pair in given.items() for part in pair)))
