"""Running a suite: a report for each model in a folder of its own, and what it was made with beside them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from mhex._files import write_text
from mhex._json import read_json
from mhex._progress import progress_bar
from mhex.bench import store
from mhex.bench.about import versions
from mhex.bench.controls import is_control
from mhex.bench.judging import evaluate
from mhex.bench.report import Report
from mhex.bench.suite import Suite
from mhex.bench.suite_evaluator import Resized
from mhex.bench.suite_plan import Ready, make_ready
from mhex.bench.suite_shelf import Shelf
from mhex.errors import ArgumentError

TOLD = "suite.json"
_OF_THE_WORK = ("device", "versions", "command", "remark")  # they belong to the call that made the rows


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

    @property
    def remarks(self) -> list[str]:
        """A sentence on models whose turn has not come, where a run was broken off."""
        return missing_models(self.told)

    @property
    def lost(self) -> dict[str, Mapping[int, str]]:
        """For each model, the samples that could not be judged, and why; models without any are left out."""
        return {label: report.lost for label, report in self.reports.items() if report.lost}


def missing_models(told: Mapping[str, Any]) -> list[str]:
    """A sentence on models of a suite that have no record in its `suite.json`; empty if all have."""
    labels = told.get("labels", ())
    missing = [label for label in labels if label not in told["models"]]
    if not missing:
        return []
    return [
        f"Broken off, or still running: {len(labels) - len(missing)} of {len(labels)} models of this suite are judged, "
        f"and {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not. The same command goes on from there."
    ]


def run_suite(
    suite: Suite,
    out: str | PathLike[str],
    *,
    device: str = "cpu",
    quick: bool = False,
    progress: bool = False,
    command: str | None = None,
    remark: str = "",
    shelf: Shelf | None = None,
    say: Callable[[str], None] | None = None,
) -> SuiteResult:
    """Judge all that a suite asks for. The same call goes on where a broken one stopped; what is there stays.

    Args:
        suite: As `mhex.bench.suite_files.read_suite` gives it.
        out: Folder of the suite: rows of each model in `out/LABEL`, and `out/suite.json`.
        device: Where models run.
        quick: In the quick form.
        progress: Draw progress bars with the time that is left.
        command: What made the result, for pages; by default this call in words.
        remark: On the circumstances, for pages: that other work ran on the same device, say.
        shelf: Where models and data are kept for other suites.
        say: Told in a line when a model is done, and how long it took.

    Raises:
        ArgumentError: Something is wrong with the suite, a model or the folder; nothing has been judged then.
    """
    out = Path(out)
    ready = make_ready(suite, quick, shelf)
    command = command or f"run_suite({suite.name!r}, quick={quick})"
    before = records_in(out)
    # What an earlier call told of models whose turn has not come stays, should this one be broken off.
    records = {one.entry.label: before[one.entry.label] for one in ready if one.entry.label in before}
    reports, added = {}, 0
    for number, one in enumerate(ready):
        folder, started = out / one.entry.label, time.perf_counter()
        had = _parts(folder)
        with progress_bar(len(ready), progress, f"{suite.name}: {one.entry.label}") as bar:
            bar.reach(number)
            reports[one.entry.label] = _judge(suite, one, folder, device, progress)
        new = len(_parts(folder) - had)
        work = {"device": _device(device), "versions": versions(), "command": command, "remark": remark}
        seconds = time.perf_counter() - started
        record = _record(one, reports[one.entry.label], work, seconds, bool(had))
        records[one.entry.label] = _joined(before.get(one.entry.label), record, new)
        added += new
        told = _told(suite, quick, records)
        write_text(json.dumps(told, indent=2), out / TOLD)
        if say is not None:
            say(f"{suite.name}: {one.entry.label}: {_spoken(record, new)} in {seconds:.1f} s.")
    return SuiteResult(suite, quick, reports, told, added)


def _judge(suite: Suite, one: Ready, folder: Path, device: str, progress: bool) -> Report:
    one.bundle.model.to(device)
    if one.evaluator is not None:
        one.evaluator.to(device)
    return evaluate(
        one.bundle,
        one.items,
        one.methods,
        [part.given for part in one.entry.metrics],
        target=one.entry.target,
        controls=suite.controls,
        batch_size=suite.batch_size,
        evaluator=one.evaluator,
        seed=suite.seed,
        out=folder,
        curves=suite.curves,
        pictures=suite.pictures,
        progress=progress,
    )


def _spoken(record: Mapping[str, Any], new: int) -> str:
    """What was done, in a line."""
    controls = sum(map(is_control, record["methods"]))
    done = f"{len(record['methods']) - controls} methods and {controls} control maps on {record['images']} samples"
    return done if new else f"{done}, which were there,"


def _record(one: Ready, report: Report, work: Mapping[str, Any], seconds: float, resumed: bool) -> dict[str, Any]:
    """What is told of a model."""
    samples = set(zip(*(report.rows.column(name).to_pylist() for name in ("image", "input")), strict=True))
    return {
        "model": one.entry.model,
        "evaluator": one.entry.evaluator,
        "evaluator_size": list(one.evaluator.size) if isinstance(one.evaluator, Resized) else None,
        "data": asdict(one.entry.data),
        "target": one.entry.target,
        "images": len(samples),
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
    earlier = {"remark": "", **before}
    if new == 0:
        return {**record, **{name: earlier[name] for name in (*_OF_THE_WORK, "seconds", "resumed")}}
    remarks = " ".join(dict.fromkeys(one["remark"] for one in (earlier, record) if one["remark"]))
    seconds = before["seconds"] + record["seconds"]  # all of the work, if the first call told of all of its own
    return {**record, "seconds": seconds, "resumed": before["resumed"], "remark": remarks}


def _told(suite: Suite, quick: bool, records: Mapping[str, Any]) -> dict[str, Any]:
    last = list(records.values())[-1]
    told = {
        "suite": asdict(suite),
        "quick": quick,
        "seed": suite.seed,
        "labels": [entry.label for entry in suite.entries(quick)],
        **{name: last[name] for name in _OF_THE_WORK},
        "wall_seconds": sum(one["seconds"] for one in records.values()),
        "models": dict(records),
    }
    return dict(json.loads(json.dumps(told, default=str)))  # as it will be read


def records_in(out: Path) -> dict[str, Any]:
    """What is told of each model in the folder of a suite, by label; empty if nothing is."""
    return dict(told_in(out)["models"]) if (out / TOLD).is_file() else {}


def told_in(out: Path) -> dict[str, Any]:
    """What `suite.json` in the folder of a suite holds.

    Raises:
        ArgumentError: There is none, or it is damaged.
    """
    path = out / TOLD
    if not path.is_file():
        raise ArgumentError(f"Expected {TOLD} in {out}, which `mhex bench` writes beside its rows, but there is none.")
    try:
        told = dict(read_json(path.read_text(encoding="utf-8")))
        if not all(isinstance(told[key], Mapping) for key in ("suite", "models")):
            raise TypeError("suite and models should be mappings")
    except (ValueError, KeyError, TypeError) as error:
        raise ArgumentError(f"{path} is damaged ({error}); delete it: rows are kept apart from it.") from error
    return told


def _parts(folder: Path) -> set[str]:
    return {path.name for _, path in store.numbered(folder)} if folder.is_dir() else set()


def _device(device: str) -> str:
    """The device in words."""
    if device.startswith("cuda"):
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return f"{device} ({torch.get_num_threads()} threads)"
