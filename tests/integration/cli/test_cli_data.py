from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from cli_helpers import Run, one_sentence

from mhex.lab.datasets import CATALOGUE


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder."""
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("MHEX_DATA", str(folder))
    return folder


def movies(folder: Path) -> Path:
    """The published folder of Movie Reviews, with a review in each split."""
    (folder / "docs").mkdir(parents=True)
    for part in ("train", "val", "test"):
        (folder / "docs" / f"{part}.txt").write_text("so good")
        line = {"annotation_id": f"{part}.txt", "classification": "POS", "evidences": []}
        (folder / f"{part}.jsonl").write_text(json.dumps(line))
    return folder


def test_data_sets_are_listed(run: Run, data: Path) -> None:
    (data / "pneumoniamnist.npz").touch()
    result = run("data", "list")
    assert result.exit_code == 0
    heading, *lines = [line.split("\t") for line in result.stdout.splitlines()]
    rows = {line[0]: dict(zip(heading, line, strict=True)) for line in lines}
    assert set(rows) == {*CATALOGUE, "cora"}
    assert rows["pneumonia"]["here"] == "pneumoniamnist.npz"
    assert rows["blood"]["here"] == "no"
    assert rows["pets"]["how to get it"] == "mhex data get pets"
    assert "--from PBC_dataset_normal_DIB.zip, from https://" in rows["blood"]["how to get it"]
    assert rows["imagenet"]["how to get it"].startswith("place it yourself")


def test_data_sets_as_json_without_a_data_folder(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MHEX_DATA", raising=False)
    result = run("data", "list", "--json")
    rows = {row["name"]: row for row in json.loads(result.stdout)}
    assert rows["camvid"]["here"] is None
    assert rows["camvid"]["licence"] == "none named; research use"
    assert "bicubic" in rows["camvid"]["differs"]
    assert "MHEX_DATA" in result.stderr


def test_a_data_set_is_made_in_the_data_folder(run: Run, data: Path, tmp_path: Path) -> None:
    result = run("data", "get", "movies", "--from", str(movies(tmp_path / "published")))
    assert result.exit_code == 0
    assert result.stdout == f"movies: Movie Reviews (ERASER) (none named), in {data / 'movies.parquet'}\n"
    assert pq.read_table(data / "movies.parquet").column("split").to_pylist() == ["test", "train", "val"]
    assert "is there already" in one_sentence(run("data", "get", "movies", "--from", str(tmp_path / "published")))


def test_another_folder_and_remarks(run: Run, tmp_path: Path) -> None:
    arrays = {f"{part}_images": np.zeros((2, 28, 28), dtype=np.uint8) for part in ("train", "val", "test")}
    labels = {f"{part}_labels": np.zeros((2, 1), dtype=np.uint8) for part in ("train", "val", "test")}
    np.savez(tmp_path / "pneumoniamnist.npz", **arrays, **labels)
    out = tmp_path / "new" / "folder"
    result = run("data", "get", "pneumonia", "--from", str(tmp_path / "pneumoniamnist.npz"), "--out", str(out))
    assert result.exit_code == 0
    assert (out / "pneumoniamnist.npz").is_file()
    assert "3882 of 3882 listed training images were not found" in result.stderr


def test_mistakes_are_one_sentence(run: Run, data: Path, tmp_path: Path) -> None:
    assert "Did you mean 'blood'?" in one_sentence(run("data", "get", "blod"))
    assert "and give it by --from" in one_sentence(run("data", "get", "blood"))
    (tmp_path / "a.zip").write_text("Not found")
    words = one_sentence(run("data", "get", "blood", "--from", str(tmp_path / "a.zip")))
    assert "a.zip is neither a tar nor a zip archive" in words
    words = one_sentence(run("data", "get", "blood", "--from", str(movies(tmp_path / "published"))))
    assert "16249 of 16249 samples of PBC peripheral blood cells are not in these files" in words
    assert list(data.iterdir()) == []


def test_no_data_folder_is_told(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MHEX_DATA", raising=False)
    result = run("data", "get", "movies", "--from", str(movies(tmp_path / "published")))
    assert result.exit_code == 2
    assert "set the environment variable MHEX_DATA" in result.stderr
