"""Evaluations on disk: which folders hold some, and what is known of each."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from mhex.bench.about import read
from mhex.bench.store import numbered
from mhex.bench.controls import is_control
from mhex.bench.gathering import explain_seconds
from mhex.bench.report import Report
from mhex.bench.shown import kept
from mhex.errors import ArgumentError
from mhex.explanation import Explanation


@dataclass(frozen=True)
class Evaluation:
    """An evaluation that a folder holds.

    Attributes:
        name: Of its folder.
        report: Its rows and curves.
        told: What the rows are of: fingerprints of models, target, task and seed.
        calls: That made it, with versions and commands; empty if none was written down.
        drawn: Explanations of kept samples, by number and method.
    """

    name: str
    report: Report
    told: Mapping[str, Any]
    calls: Sequence[Mapping[str, Any]]
    drawn: Mapping[int, Mapping[str, Explanation]]

    @property
    def images(self) -> int:
        """Samples that were judged."""
        rows = self.report.rows
        return len(set(zip(rows.column("image").to_pylist(), rows.column("input").to_pylist(), strict=True)))

    @cached_property
    def methods(self) -> list[str]:
        """Methods that are no controls."""
        return [name for name in self.report.methods if not is_control(name)]

    @cached_property
    def controls(self) -> list[str]:
        """Control maps."""
        return [name for name in self.report.methods if is_control(name)]

    def seconds(self) -> dict[str, float]:
        """What an explanation took, by method; controls are left out."""
        return {name: took for name, took in explain_seconds(self.report.rows).items() if not is_control(name)}


def evaluations(folder: Path) -> list[Evaluation]:
    """All evaluations in a folder and its subfolders, by name.

    Args:
        folder: That `mhex.evaluate` was given as `out=`, or one that holds such folders.
    """
    if not folder.is_dir():
        raise ArgumentError(f"Expected a folder with evaluations, but there is none at {str(folder)!r}.")
    inside = [folder, *sorted(path for path in folder.rglob("*") if path.is_dir())]
    found = [_evaluation(path, folder) for path in inside if numbered(path)]
    if not found:
        raise ArgumentError(
            f"Expected an evaluation in {str(folder)!r} or in a folder below, but there are no rows (part-*.parquet); "
            "make one with mhex.evaluate(..., out=FOLDER)."
        )
    return found


def _evaluation(path: Path, top: Path) -> Evaluation:
    name = path.resolve().name if path == top else path.relative_to(top).as_posix()
    report = Report.load(path)
    if not report.rows.num_rows:
        raise ArgumentError(f"Expected rows in {str(path)!r}, but its files are empty; run the evaluation again.")
    told = json.loads(report.rows.column("run")[0].as_py())
    return Evaluation(name, report, told, read(path), kept(path))
