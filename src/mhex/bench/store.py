"""Rows on disk: parts that are written whole, so that a broken run loses nothing and goes on."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mhex.errors import ArgumentError

# One row per image, method, metric and number of it; `run` says of which model, target and seed.
COLUMNS = (
    *("run", "image", "input", "method", "options", "metric", "settings", "protocol", "column"),
    *("value", "seconds", "explain_seconds"),
)
KEY = ("image", "input", "method", "options", "metric", "protocol")
Key = tuple[Any, ...]


def _schema() -> Any:
    import pyarrow as pa

    kinds = {"image": pa.int64(), "value": pa.float64(), "seconds": pa.float64(), "explain_seconds": pa.float64()}
    return pa.schema([(name, kinds.get(name, pa.string())) for name in COLUMNS])


def as_table(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Rows as an arrow table."""
    import pyarrow as pa

    return pa.Table.from_pylist([dict(row) for row in rows], schema=_schema())


def write(table: Any, path: Path) -> None:
    """Write a Parquet file whole or not at all."""
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    pq.write_table(table, partial)
    os.replace(partial, path)


def read(path: Path) -> Any:
    """Rows of a Parquet file, or of all of them in a folder."""
    import pyarrow as pa

    if not path.exists():
        raise ArgumentError(f"Expected a Parquet file or a folder of them, but there is no {path.name!r}.")
    files = [file for _, file in numbered(path)] if path.is_dir() else [path]
    tables = [_table(file, path.is_dir()) for file in files]
    for file, table in zip(files, tables, strict=True):
        if tuple(table.column_names) != COLUMNS:
            raise ArgumentError(f"Expected the columns {', '.join(COLUMNS)} in {file.name!r}: it is no report of mhex.")
    return pa.concat_tables(tables) if tables else as_table([])


def numbered(folder: Path) -> list[tuple[int, Path]]:
    """Parts of a run and their numbers, in their order."""
    names = ((re.fullmatch(r"part-(\d+)\.parquet", path.name), path) for path in folder.iterdir())
    return sorted((int(name[1]), path) for name, path in names if name)


def _table(file: Path, part: bool) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with file.open("rb") as stream:
        try:
            return pq.read_table(stream)
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # the file may be whole, but cannot be read
            what = "delete it, and the same call makes its rows again" if part else "write the report once more"
            told = f"Expected rows in {str(file)!r}, but the file is damaged ({str(error).strip()}); {what}."
            raise ArgumentError(told) from error


class Parts:
    """Rows of a run, part by part.

    Args:
        folder: Where they are kept; None to keep them in memory alone.
        told: What the run is of: its model, target and seed. Rows of another run are refused.
    """

    def __init__(self, folder: Path | None, told: str) -> None:
        self.folder, self.told = folder, told
        self.tables: list[Any] = []
        self.done: set[Key] = set()
        self.asked: set[Key] = set()
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        _check_run(folder / "run.json", told)
        if numbered(folder):
            table = read(folder)
            self.tables.append(table)
            self._note(table.to_pylist())

    def _note(self, rows: Iterable[Mapping[str, Any]]) -> None:
        self.done |= {tuple(row[name] for name in KEY) for row in rows}

    def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Keep rows of a batch, on disk before anything else is done."""
        rows = [{"run": self.told, **row} for row in rows if tuple(row[name] for name in KEY) not in self.done]
        if not rows:
            return
        table = as_table(rows)
        if self.folder is not None:
            last = max((number for number, _ in numbered(self.folder)), default=-1)
            write(table, self.folder / f"part-{last + 1:06d}.parquet")
        self.tables.append(table)
        self._note(rows)

    def table(self) -> Any:
        """All rows that were asked for; others that the folder has stay there."""
        import pyarrow as pa

        table = pa.concat_tables(self.tables) if self.tables else as_table([])
        keys = zip(*(table.column(name).to_pylist() for name in KEY), strict=True)
        return table.filter(pa.array([key in self.asked for key in keys], pa.bool_()))


def _check_run(path: Path, told: str) -> None:
    """Refuse a folder whose rows are of another model, target or seed."""
    if path.exists():
        there = path.read_text(encoding="utf-8")
        if there != told:
            raise ArgumentError(
                f"Expected rows of this run in {path.parent.name!r}, but they are of another model, target or seed: "
                f"{there} there, {told} now. Choose another folder."
            )
        return
    path.write_text(told, encoding="utf-8")
