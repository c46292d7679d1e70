"""Running a suite: a report for each model in a folder of its own, and what it was made with beside them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from mhex.bench import store
from mhex.bench.about import versions
from mhex.bench.judging import evaluate
from mhex.bench.report import Report
from mhex.bench.suite import Suite
from mhex.bench.suite_plan import Ready, make_ready
from mhex.errors import ArgumentError

TOLD = "suite.json"
_OF_THE_WORK = ("device", "versions", "command")  # they belong to the call that made the rows


@dataclass(frozen=True)
class SuiteResult:
    """What a suite found.

    Attributes:
        suite: The suite.
        quick: Whether in its quick form.
        reports: By the labels of the models.
        told: What `suite.json` holds.
        added: Rows that this call made; 0 where all were there.
    """

    suite: Suite
    quick: bool
    reports: Mapping[str, Report]
    told: Mapping[str, Any]
    added: int


def run_suite(
    suite: Suite,
    out: str | PathLike[str],
    *,
    device: str = "cpu",
    quick: bool = False,
    progress: bool = False,
    command: str | None = None,
) -> SuiteResult:
    """Judge all that a suite asks for. The same call goes on where a broken one stopped; what is there stays.

    Args:
        suite: As `mhex.bench.suite_files.read_suite` gives it.
        out: Folder of the suite: rows of each model in `out/LABEL`, and `out/suite.json`.
        device: Where models run.
        quick: In the quick form.
        progress: Draw progress bars with the time that is left.
        command: What made the result, for pages; by default this call in words.

    Raises:
        ArgumentError: Something is wrong with the suite, a model or the folder; nothing has been judged then.
    """
    out = Path(out)
    ready = make_ready(suite, quick)
    command = command or f"run_suite({suite.name!r}, quick={quick})"
    before = _told_before(out)
    reports, records, added = {}, {}, 0
    for one in ready:
        folder, started = out / one.entry.label, time.perf_counter()
        had = _parts(folder)
        reports[one.entry.label] = _judge(suite, one, folder, device, progress)
        new = len(_parts(folder) - had)
        work = {"device": _device(device), "versions": versions(), "command": command}
        record = _record(one, reports[one.entry.label], work, time.perf_counter() - started, bool(had))
        records[one.entry.label] = _joined(before.get(one.entry.label), record, new)
        added += new
        told = _told(suite, quick, records)
        _write(out / TOLD, told)
    return SuiteResult(suite, quick, reports, told, added)


def _judge(suite: Suite, one: Ready, folder: Path, device: str, progress: bool) -> Report:
    one.bundle.model.to(device)
    if one.evaluator is not None:
        one.evaluator.model.to(device)
    return evaluate(
        one.bundle,
        one.items,
        one.methods,
        [part.given for part in one.entry.metrics],
        target=one.entry.target,
        controls=suite.controls,
        batch_size=suite.batch_size,
        evaluator=None if one.evaluator is None else one.evaluator.model,
        seed=suite.seed,
        out=folder,
        progress=progress,
    )


def _record(one: Ready, report: Report, work: Mapping[str, Any], seconds: float, resumed: bool) -> dict[str, Any]:
    """What is told of a model."""
    return {
        "model": one.entry.model,
        "evaluator": one.entry.evaluator,
        "data": asdict(one.entry.data),
        "target": one.entry.target,
        "images": len(one.items),
        "accuracy": one.bundle.card.get("accuracy"),
        "methods": report.methods,
        "protocols": {name: report.protocol(name) for name in report.metrics},
        "rows": report.rows.num_rows,
        "seconds": seconds,
        "resumed": resumed,
        **work,
    }


def _joined(before: Mapping[str, Any] | None, record: dict[str, Any], new: int) -> dict[str, Any]:
    """A record that keeps who made the rows and in what time, where they were there already."""
    if before is None:
        return record
    if new == 0:
        return {**record, **{name: before[name] for name in (*_OF_THE_WORK, "seconds", "resumed")}}
    return {**record, "seconds": before["seconds"] + record["seconds"]}


def _told(suite: Suite, quick: bool, records: Mapping[str, Any]) -> dict[str, Any]:
    last = list(records.values())[-1]
    told = {
        "suite": asdict(suite),
        "quick": quick,
        "seed": suite.seed,
        **{name: last[name] for name in _OF_THE_WORK},
        "wall_seconds": sum(one["seconds"] for one in records.values()),
        "models": dict(records),
    }
    return dict(json.loads(json.dumps(told, default=str)))  # as it will be read


def _told_before(out: Path) -> dict[str, Any]:
    """Records of the models from earlier calls."""
    path = out / TOLD
    if not path.is_file():
        return {}
    try:
        return dict(json.loads(path.read_text(encoding="utf-8"))["models"])
    except (ValueError, KeyError, TypeError) as error:
        raise ArgumentError(f"{path} is damaged ({error}); delete it: rows are kept apart from it.") from error


def _parts(folder: Path) -> set[str]:
    return {path.name for _, path in store.numbered(folder)} if folder.is_dir() else set()


def _device(device: str) -> str:
    """The device in words."""
    if device.startswith("cuda"):
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return f"{device} ({torch.get_num_threads()} threads)"


def _write(path: Path, told: Mapping[str, Any]) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(json.dumps(told, indent=2), encoding="utf-8")
    os.replace(partial, path)
