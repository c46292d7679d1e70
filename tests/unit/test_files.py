"""Files appear whole or not at all, whatever happens while they are written."""

from __future__ import annotations

import ast
import errno
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import mhex
from mhex import _files
from mhex.errors import ArgumentError
from support.method_races import run as raced
from support.tiny_models import pictures, tiny

SOURCE = Path(_files.__file__).parent
WRITES = {"save_file", "write_table", "savefig", "save_pretrained", "to_csv", "copy", "copyfile", "savez", "dump"}
ASIDE = {  # where a folder or name aside is written to, or a buffer in memory
    *("_files.py", "judge/store.py", "viz/canvas.py"),
    *("lab/train/checkpoint.py", "lab/train/run.py"),
    *("lab/datasets/archives.py", "lab/datasets/source.py", "lab/datasets/medmnist.py"),
}


def _writes(call: ast.Call) -> bool:
    """Whether a call writes a file by the name that it is given."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name == "open":
        words = [one.value for one in ast.walk(call) if isinstance(one, ast.Constant) and isinstance(one.value, str)]
        return any(re.fullmatch(r"[wax]b?t?\+?", word) for word in words)
    if isinstance(call.func, ast.Attribute) and name in ("write_text", "write_bytes"):
        return len(call.args) == 1  # those of paths; ours take the path, too
    module = getattr(getattr(call.func, "value", None), "id", "")
    return name in WRITES and (name not in ("copy", "dump") or module in ("shutil", "json", "pickle", "yaml"))


def test_nobody_writes_a_file_by_its_final_name() -> None:
    wrong = []
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        calls = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Call)]
        wrong += [f"{name}:{call.lineno}" for call in calls if name not in ASIDE and _writes(call)]
    assert wrong == []


class Full:
    """A disk that is full after so many bytes of any file whose name a test did not exclude."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real = Path.write_bytes

        def write_bytes(path: Path, data: bytes) -> int:
            real(path, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        def save_file(tensors: Any, path: Path, metadata: Any = None) -> None:
            from safetensors import SafetensorError

            real(path, b"half")
            raise SafetensorError("I/O error: No space left on device (os error 28)")

        def write_table(table: Any, path: Path) -> None:
            real(path, b"half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(Path, "write_bytes", write_bytes)
        monkeypatch.setattr("safetensors.torch.save_file", save_file)
        monkeypatch.setattr("pyarrow.parquet.write_table", write_table)


def explanation() -> mhex.Explanation:
    return mhex.explain(tiny("cnn"), pictures(1), "gradcam")


def report() -> mhex.Report:
    return mhex.evaluate(tiny("cnn"), pictures(2), ["gradcam"], ["compactness"])


WRITERS: dict[str, Callable[[], Callable[[Path], object]]] = {
    "a.safetensors": lambda: explanation().save,
    "a.png": lambda: explanation().save,
    "a.html": lambda: explanation().save,
    "rows.parquet": lambda: report().to_parquet,
    "concept.safetensors": lambda: mhex.Concept(torch.ones(3), "c", "dot", 2).save,
    "heads.safetensors": lambda: mhex.attach(tiny("cnn"), 5).save,
    "text.md": lambda: lambda path: _files.write_text("words", path),
    "weights.safetensors": lambda: lambda path: _files.write_tensors({"a": torch.ones(2)}, path, durable=True),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_leaves_what_was_there(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads the file meanwhile reads the whole old one: the new one takes its name in one step."""
    path, write = tmp_path / name, WRITERS[name]()
    for before in ([], [name]):
        if before:
            path.write_text("what was there")
        with monkeypatch.context() as patch:
            Full(patch)
            with pytest.raises(ArgumentError, match=rf"Cannot write to .*{name}: .*No space left on device") as caught:
                write(path)
        assert str(caught.value).endswith(".")
        assert [file.name for file in tmp_path.iterdir()] == before
    assert path.read_text() == "what was there"
    with path.open() as reader:
        write(path)
        assert reader.read() == "what was there"
    assert path.read_bytes() != b"what was there"
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_a_full_disk_leaves_the_rows_of_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def judged(count: int) -> mhex.Report:
        return mhex.evaluate(tiny("cnn"), pictures(4)[:count], ["gradcam"], ["compactness"], out=tmp_path)

    judged(2)
    names = sorted(file.name for file in tmp_path.iterdir())
    with monkeypatch.context() as patch:
        Full(patch)
        with pytest.raises(ArgumentError, match="No space left on device"):
            judged(4)
    assert sorted(file.name for file in tmp_path.iterdir()) == names
    assert judged(4).rows.num_rows == 2 * judged(2).rows.num_rows


def test_a_full_disk_leaves_the_recommendation_of_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = raced(images=2)
    found.save(tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    other = raced(images=3)
    with monkeypatch.context() as patch:
        patch.setattr("mhex.judge.report.write_call", _no_space)
        with pytest.raises(ArgumentError, match="No space left on device"):
            other.save(tmp_path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
    other.save(tmp_path)
    assert sorted(before) == sorted(file.name for file in tmp_path.iterdir())
    assert mhex.Report.load(tmp_path).rows.num_rows > found.report.rows.num_rows


def test_ctrl_c_leaves_nothing_half(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with pytest.raises(KeyboardInterrupt), _files.replacing(path) as aside:
        _interrupted(aside)
    with pytest.raises(KeyboardInterrupt), _files.folder_aside(tmp_path / "part") as folder:
        _interrupted(folder / "a.txt")
    assert list(tmp_path.iterdir()) == []


def test_links_and_devices_are_written_through(tmp_path: Path) -> None:
    real, link = tmp_path / "real.txt", tmp_path / "link.txt"
    real.write_text("old")
    link.symlink_to(real)
    _files.write_text("new", link)
    assert link.is_symlink()
    assert real.read_text() == "new"
    _files.write_text("gone", os.devnull)
    assert not Path(os.devnull).is_file()
    with pytest.raises(ArgumentError, match="Cannot write to"):
        _files.write_text("x", tmp_path)
    long = tmp_path / f"{'n' * 250}.txt"
    _files.write_text("a long name", long)
    assert long.read_text() == "a long name"


def _interrupted(path: Path) -> None:
    path.write_text("half")
    raise KeyboardInterrupt


def _no_space(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
