"""Readers of files, given damaged ones: what they read is right, or they say in a sentence that the file is not."""

from __future__ import annotations

import re
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

from mhex.errors import MhexError

Damage = Callable[[bytes, Random], bytes]

FEW, MANY = 50, 10_000  # damaged files for each reader in the default run, and in the slow one
LONGEST, MOST_MEMORY = 2.0, 300  # seconds of work on one file, megabytes
MEMORY = Path("/dev/shm")  # a folder in memory, which takes a tenth of the time of one on a disk
LINUX = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="the most memory of a process is asked of Linux"
)


@dataclass(frozen=True)
class Reader:
    """A reader of files.

    Attributes:
        write: Writes whole files into a folder.
        load: Reads them.
        damages: How files are damaged, by patterns of their names.
        many: Number of damaged files of the slow run.
        variable: Of the environment, that names the folder.
    """

    write: Callable[[Path], Any]
    load: Callable[[Path], Any]
    damages: Mapping[str, Damage] = field(default_factory=dict)
    many: int = MANY
    variable: str = "MHEX_DATA"


_CHANGED: dict[Path, Path] = {}


def changed(folder: Path) -> list[Path]:
    """The file of a folder that is damaged at the moment; all of them while none is."""
    if folder in _CHANGED:
        return [_CHANGED[folder]]
    return sorted(path for path in folder.rglob("*") if path.is_file())


def tree(folder: Path) -> dict[str, bytes | None]:
    """Names and contents of all that a folder holds."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def peak_memory() -> float:
    """Most memory of this process since `forget_peak`, in megabytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def victims(folder: Path, damages: Iterable[str]) -> list[tuple[Path, str]]:
    return [(path, pattern) for pattern in damages for path in sorted(folder.rglob(pattern)) if path.is_file()]


def put(path: Path, content: bytes) -> None:
    """Write a file; a link that lies there is replaced, not followed."""
    if path.is_symlink():
        path.unlink()
    path.write_bytes(content)


def check_case(reader: Reader, room: Path, case: str) -> None:
    """A damaged file is read, or refused in a sentence, and soon."""
    began, refusal = time.process_time(), "."
    try:
        reader.load(room)
    except MhexError as error:
        refusal = str(error)
    except Exception as error:
        raise AssertionError(f"{case}: {type(error).__name__}: {error}") from error
    took = time.process_time() - began
    assert re.search(r"[.?]$", refusal), f"{case}: a sentence, please: {refusal!r}"
    assert took < LONGEST, f"{case}: took {took:.1f} seconds"


def check_reader(name: str, reader: Reader, count: int, place: Path) -> None:
    """Damage files so many times, in a folder `room` of a new folder, and read them."""
    room, beside = place / "room", place / "beside"
    room.mkdir()
    beside.mkdir()
    (beside / "trap").write_text("never read, never written")
    reader.write(room)
    reader.load(room)  # whole files, and everything that is imported on the way
    untouched, random = tree(beside), Random(name)
    targets = victims(room, reader.damages)
    assert targets
    sound = {path: path.read_bytes() for path, _ in targets}
    before = tree(room)
    forget_peak()
    start, path = peak_memory(), targets[0][0]
    for number in range(count):
        last, (path, pattern) = path, random.choice(targets)
        if last != path:
            put(last, sound[last])
        if random.random() < 0.01:
            path.unlink()
            path.symlink_to(beside / "trap")
        else:
            put(path, reader.damages[pattern](sound[path], random))
        _CHANGED[room] = path
        check_case(reader, room, f"{number} ({path.name})")
        if number % 50 == 0 or number == count - 1:
            grown = peak_memory() - start
            assert grown < MOST_MEMORY, f"{number} ({path.name}): took {grown:.0f} megabytes"
    put(path, sound[path])
    del _CHANGED[room]
    assert tree(beside) == untouched
    assert {path.name for path in place.iterdir()} == {"room", "beside"}
    assert tree(room) == before


def fuzz_test(readers: Mapping[str, Reader]) -> Callable[..., None]:
    """The test of readers by name: each with few damaged files, and in the slow run with many."""

    @LINUX
    @pytest.mark.parametrize("slow", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["few", "many"])
    @pytest.mark.parametrize("name", readers)
    def test(name: str, slow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        reader = readers[name]
        with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as place, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            monkeypatch.setenv(reader.variable, str(Path(place) / "room"))
            check_reader(name, reader, reader.many if slow else FEW, Path(place))

    return test
