"""A suite's result from its folder alone, so that pages can be made where there are no models and no data."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from mhex._schema import build
from mhex.errors import ArgumentError
from mhex.judge.report import Report
from mhex.lab.config.suite import Suite
from mhex.lab.suites.run import TOLD, SuiteResult, told_in


def stored_result(folder: str | PathLike[str], suite: Suite | None = None) -> SuiteResult:
    """What `run_suite` found before, read from its folder; nothing is computed but statistics.

    Args:
        folder: That `run_suite` wrote, here or on another machine.
        suite: Whose words and published numbers go onto pages; None for those of the time when rows were made.

    Raises:
        ArgumentError: The folder holds no result, one of another suite, or rows that `suite.json` does not tell of.
    """
    folder = Path(folder)
    told = told_in(folder)
    made = build(Suite, told["suite"], f"{folder.name}/{TOLD}: suite")
    suite = suite or made
    if suite.name != made.name:
        raise ArgumentError(f"Expected rows of the suite {suite.name} in {folder}, but they are of {made.name}.")
    quick = bool(told.get("quick", False))
    labels = [entry.label for entry in suite.entries(quick) if entry.label in told["models"]]
    if not labels:
        known = ", ".join(told["models"])
        raise ArgumentError(f"Expected rows of a model of {suite.name} in {folder}, but they are of {known}.")
    reports = {label: _report(folder / label, told["models"][label]) for label in labels}
    return SuiteResult(suite, quick, reports, told, added=0)


def _report(folder: Path, record: Mapping[str, Any]) -> Report:
    """The rows that a record tells of; of other methods and metrics there may be more."""
    report = Report.load(folder)
    methods, metrics = list(record["methods"]), list(record["protocols"])
    lost = [name for name in methods if name not in report.methods]
    lost += [name for name in metrics if name not in report.metrics]
    if lost:
        raise ArgumentError(f"Expected rows of {lost[0]} in {folder}, as {TOLD} tells; copy the whole folder.")
    if set(methods) != set(report.methods) or set(metrics) != set(report.metrics):
        report = report.only(methods, metrics)
    rows = report.rows
    samples = set(zip(rows.column("image").to_pylist(), rows.column("input").to_pylist(), strict=True))
    if len(samples) != record["images"]:
        raise ArgumentError(
            f"Expected rows of {record['images']} samples in {folder}, as {TOLD} tells, but there are {len(samples)}: "
            "it holds several forms of the suite. Run the suite in a folder of its own."
        )
    return report
