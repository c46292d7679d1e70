"""Rows on disk: parts that are written whole, so that a broken run loses nothing and goes on."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mhex.errors import ArgumentError

# One row per image, method, metric and number of it.
COLUMNS = ("image", "method", "options", "metric", "protocol", "column", "value", "seconds", "explain_seconds")
Key = tuple[int, str, str, str, str]


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
    import pyarrow.parquet as pq

    if not path.exists():
        raise ArgumentError(f"Expected a Parquet file or a folder of them, but there is no {path.name!r}.")
    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    tables = [pq.read_table(file) for file in files]
    for file, table in zip(files, tables, strict=True):
        if tuple(table.column_names) != COLUMNS:
            raise ArgumentError(f"Expected the columns {', '.join(COLUMNS)} in {file.name!r}: it is no report of mhex.")
    return pa.concat_tables(tables) if tables else as_table([])


class Parts:
    """Rows of a run, part by part.

    Args:
        folder: Where they are kept; None to keep them in memory alone.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.tables: list[Any] = []
        self.done: set[Key] = set()
        if folder is not None and folder.exists():
            table = read(folder)
            self.tables.append(table)
            self._note(table.to_pylist())

    def _note(self, rows: Iterable[Mapping[str, Any]]) -> None:
        self.done |= {(r["image"], r["method"], r["options"], r["metric"], r["protocol"]) for r in rows}

    def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Keep rows of a batch, on disk before anything else is done."""
        if not rows:
            return
        table = as_table(rows)
        if self.folder is not None:
            number = len(list(self.folder.glob("part-*.parquet"))) if self.folder.exists() else 0
            write(table, self.folder / f"part-{number:06d}.parquet")
        self.tables.append(table)
        self._note(rows)

    def table(self) -> Any:
        """All rows."""
        import pyarrow as pa

        return pa.concat_tables(self.tables) if self.tables else as_table([])
