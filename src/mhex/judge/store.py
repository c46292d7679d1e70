"""Rows on disk: parts that are written whole, so that a broken run loses nothing and goes on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mhex._files import read_json, replacing, write_text, writing
from mhex.errors import ArgumentError
from mhex.inputs.samples import losses_in_words
from mhex.judge.plan import label

Call = Mapping[str, Any]


def broken_off(calls: Sequence[Call], rows: Any) -> str:
    """A sentence on calls that did not come to their end; empty if all did, or if that was not written down.

    Args:
        calls: As `mhex.judge.report` reads them.
        rows: An arrow table of the rows that there are.
    """
    for call in calls:
        if "done" not in call or call["done"] is not None or any(_covers(other, call) for other in calls):
            continue
        whole, begun = _counts(call, rows)
        wanted = call.get("samples")
        if wanted is not None and whole >= wanted:
            continue
        methods, metrics = len(call.get("methods", [])), len(call.get("metrics", []))
        of = f"of {wanted} samples" if wanted is not None else f"of {begun} samples so far"
        return (
            f"Broken off, or still running: {whole} {of} {'is' if whole == 1 else 'are'} judged by all of {methods} "
            f"{'method' if methods == 1 else 'methods and controls'} and {metrics} "
            f"{'metric' if metrics == 1 else 'metrics'}. The same call goes on from there."
        )
    return ""


def lost_in(calls: Iterable[Call]) -> dict[int, str]:
    """Samples that could not be judged, and why, by the last call that says so."""
    lost: dict[int, str] = {}
    for call in calls:
        lost |= {int(number): str(reason) for number, reason in (call.get("lost") or {}).items()}
    return lost


def remarks(broken: str, lost: Mapping[int, str]) -> list[str]:
    """Sentences that belong above or below every table of a report."""
    count = f"{len(lost)} {'sample' if len(lost) == 1 else 'samples'}"
    losses = f"Not judged: {count} ({losses_in_words(lost)})." if lost else ""
    return [sentence for sentence in (broken, losses) if sentence]


def _covers(other: Call, call: Call) -> bool:
    """Whether another call came to its end, and did all that this one was to do."""
    if other.get("done") is None or (call.get("samples") or 0) > other["done"]:
        return False
    return all(set(call.get(key, [])) <= set(other.get(key, [])) for key in ("methods", "metrics"))


def _counts(call: Call, rows: Any) -> tuple[int, int]:
    """Samples that have all methods and metrics of a call, and those that have any."""
    names = ("image", "input", "method", "options", "metric")
    cells: dict[tuple[Any, Any], set[tuple[str, str]]] = {}
    for image, mark, method, options, metric in zip(*(rows.column(name).to_pylist() for name in names), strict=True):
        cells.setdefault((image, mark), set()).add((label(method, options), metric))
    wanted = {(method, metric) for method in call["methods"] for metric in call["metrics"]}
    return sum(wanted <= there for there in cells.values()), len(cells)


Key = tuple[Any, ...]


@dataclass(frozen=True)
class Kind:
    """What the files of a folder hold.

    Attributes:
        name: Files are `NAME-000000.parquet` and so on.
        columns: Their names, and what is in them: arrow's names, or `"floats"` for a list of single precision.
        key: Columns that no two rows have in common, but for the several numbers of one metric.
        what: They are called in sentences.
    """

    name: str
    columns: Mapping[str, str]
    key: tuple[str, ...]
    what: str

    def schema(self) -> Any:
        """As arrow has it."""
        import pyarrow as pa

        lists = pa.list_(pa.float32())
        kinds = {name: lists if kind == "floats" else pa.type_for_alias(kind) for name, kind in self.columns.items()}
        return pa.schema(list(kinds.items()))


_OF = {"run": "string", "image": "int64", "input": "string", "method": "string", "options": "string"}
_HOW = {"metric": "string", "settings": "string", "protocol": "string", "column": "string"}
# One row per image, method, metric and number of it; `run` says of which model, target, task and seed.
ROWS = Kind(
    "part",
    {**_OF, **_HOW, "value": "double", "seconds": "double", "explain_seconds": "double"},
    ("image", "input", "method", "options", "metric", "protocol"),
    "rows",
)
# One row per image, method, metric and order in which units go, with T + 1 points of its curve.
CURVES = Kind(
    "curves",
    {**_OF, "metric": "string", "protocol": "string", "order": "string", "points": "floats"},
    (*ROWS.key, "order"),
    "curves",
)
_JSON = ("run", "options", "settings")  # columns whose texts are mappings
COLUMNS, KEY = tuple(ROWS.columns), ROWS.key


def as_table(rows: Sequence[Mapping[str, Any]], kind: Kind = ROWS) -> Any:
    """Rows as an arrow table."""
    import pyarrow as pa

    return pa.Table.from_pylist([dict(row) for row in rows], schema=kind.schema())


def write(table: Any, path: Path) -> None:
    """Write a Parquet file whole or not at all."""
    import pyarrow.parquet as pq

    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as aside:
        pq.write_table(table, aside)


def read(path: Path, kind: Kind = ROWS) -> Any:
    """Rows of a Parquet file, or of all of them in a folder."""
    import pyarrow as pa

    if not path.exists():
        raise ArgumentError(f"Expected a Parquet file or a folder of them, but there is no {path.name!r}.")
    files = [file for _, file in numbered(path, kind)] if path.is_dir() else [path]
    tables = [_table(file, path.is_dir(), kind) for file in files]
    checked = [_checked(table, file, kind) for file, table in zip(files, tables, strict=True)]
    return pa.concat_tables(checked) if checked else as_table([], kind)


def _checked(table: Any, file: Path, kind: Kind) -> Any:
    """A table as it should be: its columns, their types, no empty places but values, and JSON where it belongs."""
    import pyarrow as pa

    if tuple(table.column_names) != tuple(kind.columns):
        listed = ", ".join(kind.columns)
        raise ArgumentError(f"Expected the columns {listed} in {file.name!r}: it is no report of mhex.")
    try:
        table = table.cast(kind.schema()).replace_schema_metadata(table.schema.metadata)
        table.validate(full=True)
        for name in kind.columns:
            if name != "value" and table.column(name).null_count:
                raise ValueError(f"the column {name} has empty places")
            if name in _JSON and not all(isinstance(read_json(text), dict) for text in _different(table, name)):
                raise ValueError(f"the column {name} should hold mappings")
    except (pa.ArrowException, ValueError) as error:
        what = f"Expected {kind.what} of mhex in {file.name!r}, but it holds something else"
        raise ArgumentError(f"{what}: {str(error).strip().rstrip('.')}.") from error
    return table


def _different(table: Any, name: str) -> list[str]:
    texts: list[str] = table.column(name).unique().to_pylist()
    return texts


def numbered(folder: Path, kind: Kind = ROWS) -> list[tuple[int, Path]]:
    """Parts of a run and their numbers, in their order."""
    names = ((re.fullmatch(rf"{kind.name}-(\d+)\.parquet", path.name), path) for path in folder.iterdir())
    return sorted((int(name[1]), path) for name, path in names if name)


def _table(file: Path, part: bool, kind: Kind) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with file.open("rb") as stream:
        try:
            return pq.read_table(stream)
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # the file may be whole, but cannot be read
            what = f"delete it, and the same call makes its {kind.what} again" if part else "write the report once more"
            told = f"Expected {kind.what} in {str(file)!r}, but the file is damaged ({str(error).strip()}); {what}."
            raise ArgumentError(told) from error


class Parts:
    """Rows of a run, part by part.

    Args:
        folder: Where they are kept; None to keep them in memory alone.
        told: What the run is of: its model, target, task and seed. Rows of another run are refused.
        kind: What they hold.
    """

    def __init__(self, folder: Path | None, told: str, kind: Kind = ROWS) -> None:
        self.folder, self.told, self.kind = folder, told, kind
        self.tables: list[Any] = []
        self.done: set[Key] = set()
        self.asked: set[Key] = set()
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        _check_run(folder / "run.json", told)
        if numbered(folder, kind):
            table = read(folder, kind)
            self.tables.append(table)
            self._note(table.select(kind.key).to_pylist())

    def _key(self, row: Mapping[str, Any]) -> Key:
        return tuple(row[name] for name in self.kind.key)

    def _note(self, rows: Iterable[Mapping[str, Any]]) -> None:
        self.done |= {self._key(row) for row in rows}

    def lacks(self, keys: set[Key]) -> bool:
        """Whether some of these are not there; all of them are noted as asked for."""
        self.asked |= keys
        return not keys <= self.done

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Keep rows of a batch, on disk before anything else is done."""
        rows = [{"run": self.told, **row} for row in rows if self._key(row) not in self.done]
        if not rows:
            return
        table = as_table(rows, self.kind)
        if self.folder is not None:
            last = max((number for number, _ in numbered(self.folder, self.kind)), default=-1)
            write(table, self.folder / f"{self.kind.name}-{last + 1:06d}.parquet")
        self.tables.append(table)
        self._note(rows)

    def table(self) -> Any:
        """All rows that were asked for; others that the folder has stay there."""
        import pyarrow as pa

        table = pa.concat_tables(self.tables) if self.tables else as_table([], self.kind)
        keys = zip(*(table.column(name).to_pylist() for name in self.kind.key), strict=True)
        return table.filter(pa.array([key in self.asked for key in keys], pa.bool_()))


def _check_run(path: Path, told: str) -> None:
    """Refuse a folder whose rows are of another model, target, task or seed."""
    if path.exists():
        there = path.read_text(encoding="utf-8")
        if there != told:
            raise ArgumentError(
                f"Expected rows of this run in {path.parent.name!r}, but they are of another model, target, task or "
                f"seed: {there} there, {told} now. Choose another folder."
            )
        return
    write_text(told, path)
