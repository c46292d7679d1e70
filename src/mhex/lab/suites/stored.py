"""The folder of a suite: what its `suite.json` records, and the result that is read from it without models and data."""

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from mhex._files import read_json
from mhex._schema import build
from mhex._settings import check_that
from mhex.errors import ArgumentError
from mhex.judge.report import Report
from mhex.lab.config.suite import Suite

RECORD = "suite.json"


@dataclass(frozen=True)
class SuiteResult:
    """What a suite found, in its quick form or in the full one."""

    suite: Suite
    quick: bool
    reports: Mapping[str, Report]  # by the labels of the models
    record: Mapping[str, Any]  # what `suite.json` holds
    added: int  # rows that this call made; 0 where all were there

    @property
    def remarks(self) -> list[str]:
        """A sentence on models whose turn has not come, where a run was broken off."""
        return missing_models(self.record)

    @property
    def lost(self) -> dict[str, Mapping[int, str]]:
        """For each model, the samples that could not be judged, and why; models without any are left out."""
        return {label: report.lost for label, report in self.reports.items() if report.lost}


def missing_models(record: Mapping[str, Any]) -> list[str]:
    """Give a sentence on models of a suite that its `suite.json` has not got; nothing if it has all of them."""
    labels = record.get("labels", ())
    missing = [label for label in labels if label not in record["models"]]
    judged = f"{len(labels) - len(missing)} of {len(labels)} models of this suite are judged"
    lacking = f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not"
    words = f"Broken off, or still running: {judged}, and {lacking}. The same command goes on from there."
    return [words] if missing else []


def read_record(folder: Path) -> dict[str, Any]:
    """Read `suite.json` in the folder of a suite; refuse a folder without it, and a damaged one."""
    path = folder / RECORD
    if not path.is_file():
        raise ArgumentError(f"Expected {path}, which `mhex bench` writes beside its rows, but there is none.")
    try:
        record = dict(read_json(path.read_text(encoding="utf-8")))
        if not all(isinstance(record[key], Mapping) for key in ("suite", "models")):
            raise TypeError("suite and models should be mappings")
    except (ValueError, KeyError, TypeError) as error:
        raise ArgumentError(f"{path} is damaged ({error}); delete it: rows are kept apart from it.") from error
    return record


def stored_result(folder: str | PathLike[str], suite: Suite | None = None) -> SuiteResult:
    """Read what `run_suite` found before from its folder; nothing is computed but statistics.

    Args:
        folder: That `run_suite` wrote, here or on another machine.
        suite: Whose words and published numbers go onto pages; None for those of the time when rows were made.

    Raises:
        ArgumentError: The folder holds no result, one of another suite, or rows that `suite.json` does not tell of.
    """
    folder = Path(folder)
    record = read_record(folder)
    recorded = build(Suite, record["suite"], f"{folder.name}/{RECORD}: suite")
    suite = suite or recorded
    check_that(suite.name == recorded.name, f"rows of the suite {suite.name} in {folder}", f"those of {recorded.name}")
    quick, models = bool(record.get("quick", False)), record["models"]
    labels = [entry.label for entry in suite.entries(quick) if entry.label in models]
    check_that(bool(labels), f"rows of a model of {suite.name} in {folder}", f"those of {', '.join(models)}")
    reports = {label: _report(folder / label, models[label]) for label in labels}
    return SuiteResult(suite, quick, reports, record, added=0)


def _report(folder: Path, record: Mapping[str, Any]) -> Report:
    """Read the rows that a record tells of; of other methods and metrics there may be more."""
    report = Report.load(folder)
    methods, metrics = list(record["methods"]), list(record["protocols"])
    if absent := [name for name in (*methods, *metrics) if name not in (*report.methods, *report.metrics)]:
        raise ArgumentError(f"Expected rows of {absent[0]} in {folder}, as {RECORD} tells; copy the whole folder.")
    if set(methods) != set(report.methods) or set(metrics) != set(report.metrics):
        report = report.only(methods, metrics)
    count, expected = count_samples(report), f"rows of {record['images']} samples in {folder}, as {RECORD} tells"
    check_that(count == record["images"], expected, count, ": run each form of the suite in a folder of its own")
    return report


def count_samples(report: Report) -> int:
    """Count the samples that have rows in a report."""
    return len(set(zip(*(report.rows.column(name).to_pylist() for name in ("image", "input")), strict=True)))
