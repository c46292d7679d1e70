"""Rows, curves, photos, maps and calls of evaluations, from damaged Parquet and JSON files."""

from __future__ import annotations

import functools
import io
import tempfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from containers import damaged_parquet
from mutations import damaged_json

import mhex
from mhex.judge import Report
from mhex.judge.report import evaluations
from mhex.judge.store import CURVES, MAPS, PHOTOS, Parts, explanations_from, read
from support.damaged_files import Reader, fuzz_test
from support.tiny_models import pictures, tiny


@functools.cache
def whole() -> dict[str, bytes]:
    """The files of an evaluation by name, and its rows in a single file."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        report = mhex.evaluate(
            tiny("cnn"), pictures(2), ["gradcam"], [("deletion", {"steps": 2})], controls=False, out=folder, pictures=1
        )
        assert report.rows.num_rows
        contents = {path.name: path.read_bytes() for path in folder.iterdir()}
        return {**contents, "rows.parquet": report.to_parquet(folder / "rows.parquet").read_bytes()}


@functools.cache
def sound_rows() -> Any:
    return pq.read_table(io.BytesIO(whole()["rows.parquet"]))


def writer(*starts: str) -> Any:
    def write(folder: Path) -> None:
        for name, content in whole().items():
            if name.startswith(starts):
                (folder / name).write_bytes(content)

    return write


def load_rows(folder: Path) -> Any:
    report = Report.load(folder / "rows.parquet")
    return report.methods, report.remarks, [report.values(name) for name in report.metrics]


def load_curves(folder: Path) -> Any:
    report = Report(sound_rows(), read(folder, CURVES))
    return [report.curves(name) for name in report.metrics if report.has_curves(name)]


def load_maps(folder: Path) -> Any:
    return explanations_from(read(folder, PHOTOS), read(folder, MAPS))


def load_evaluation(folder: Path) -> Any:
    return [(run.name, run.report.methods) for run in evaluations(folder)]


def go_on(folder: Path) -> Any:
    """As a call does that finds a folder with rows."""
    return Parts(folder, whole()["run.json"].decode()).done


PARQUET = {"*.parquet": damaged_parquet}
READERS = {
    "rows": Reader(writer("rows."), load_rows, PARQUET),
    "curves": Reader(writer("curves"), load_curves, PARQUET),
    "maps": Reader(writer("photos", "maps"), load_maps, PARQUET),
    "evaluation": Reader(
        writer("part", "curves", "photos", "maps", "run", "about"),
        load_evaluation,
        {**PARQUET, "*.json": damaged_json},
    ),
    "rows to go on with": Reader(writer("part", "run"), go_on, {**PARQUET, "*.json": damaged_json}),
}
test_damaged_evaluations = fuzz_test(READERS)
