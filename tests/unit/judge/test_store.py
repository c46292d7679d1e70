"""Folders of rows and of maps whose files are damaged, or not ours."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import mhex
from mhex.errors import ArgumentError
from support.tiny_models import pictures, tiny


def judged(**options: Any) -> mhex.Report:
    return mhex.evaluate(tiny("cnn"), pictures(6), ["gradcam"], ["compactness"], batch_size=2, **options)


def torn(data: bytes) -> bytes:
    return data[: len(data) // 2]


def emptied(data: bytes) -> bytes:
    return b""


def scrambled(data: bytes) -> bytes:
    """Both ends are as they should be, and nothing between them is."""
    return data[:4] + bytes(len(data) - 12) + data[-8:]


@pytest.mark.parametrize("damage", [torn, emptied, scrambled])
def test_a_damaged_part_is_named_and_made_again(tmp_path: Path, damage: Any) -> None:
    wanted = judged(out=tmp_path).values("compactness")[1]
    part = sorted(tmp_path.glob("part-*.parquet"))[4]
    part.write_bytes(damage(part.read_bytes()))
    with pytest.raises(ArgumentError, match=f"{part.name}', but the file is damaged .* delete it, and the same call"):
        judged(out=tmp_path)
    with pytest.raises(ArgumentError, match=f"{part.name}', but the file is damaged"):
        mhex.Report.load(tmp_path)
    part.unlink()
    found = judged(out=tmp_path)
    assert found.rows.num_rows == mhex.Report.load(tmp_path).rows.num_rows
    assert all(bool((found.values("compactness")[1][name] == rows).all()) for name, rows in wanted.items())


def test_a_damaged_report(tmp_path: Path) -> None:
    path = judged().to_parquet(tmp_path / "rows.parquet")
    path.write_bytes(torn(path.read_bytes()))
    with pytest.raises(ArgumentError, match=r"rows\.parquet', but the file is damaged .* write the report once more"):
        mhex.Report.load(path)


def test_files_that_cannot_be_read_are_not_called_damaged(tmp_path: Path) -> None:
    judged(out=tmp_path)
    part = sorted(tmp_path.glob("part-*.parquet"))[0]
    part.unlink()
    part.symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError):
        judged(out=tmp_path)


def test_files_of_other_people_stay(tmp_path: Path) -> None:
    report = judged(out=tmp_path)
    first = sorted(tmp_path.glob("part-*.parquet"))[0]
    shutil.copy(first, tmp_path / "part-000000 (copy).parquet")
    (tmp_path / "part-notes.parquet").write_text("mine")
    again = judged(out=tmp_path)
    assert again.rows.num_rows == report.rows.num_rows
    assert mhex.Report.load(tmp_path).rows.num_rows == report.rows.num_rows


def test_damaged_maps(tmp_path: Path) -> None:
    judged(cache=tmp_path)
    file = sorted(tmp_path.glob("gradcam-*.safetensors"))[0]
    file.write_bytes(torn(file.read_bytes()))
    with pytest.raises(ArgumentError, match=f"{file.name}', but the file is damaged .* delete it"):
        judged(cache=tmp_path)
    file.unlink()
    assert judged(cache=tmp_path).rows.num_rows


@pytest.mark.parametrize("scores", [torch.zeros(2), torch.zeros(2, 1, 3, 3), torch.zeros(2, 3, 3).int()])
def test_maps_of_another_form(tmp_path: Path, scores: Tensor) -> None:
    """The file is whole, and what it holds is no map."""
    judged(cache=tmp_path)
    file = sorted(tmp_path.glob("gradcam-*.safetensors"))[0]
    save_file({"scores": scores}, file)
    with pytest.raises(ArgumentError, match=r"it holds no map of each of 2 samples\); delete it"):
        judged(cache=tmp_path)


def test_a_run_whose_description_is_no_text(tmp_path: Path) -> None:
    judged(out=tmp_path)
    (tmp_path / "run.json").write_bytes(b'{"model": "\xff"}')
    with pytest.raises(ArgumentError, match=r"rows of this run .* choose another folder\.$"):
        judged(out=tmp_path)


def test_curves_with_empty_places(tmp_path: Path) -> None:
    mhex.evaluate(tiny("cnn"), pictures(2), ["gradcam"], [("deletion", {"steps": 2})], controls=False, out=tmp_path)
    file = tmp_path / "curves-000000.parquet"
    table = pq.read_table(file)
    points = [[None, *row[1:]] for row in table.column("points").to_pylist()]
    place = table.column_names.index("points")
    pq.write_table(table.set_column(place, "points", pa.array(points, table.schema.field(place).type)), file)
    with pytest.raises(ArgumentError, match="the column points has empty places"):
        mhex.Report.load(tmp_path)
