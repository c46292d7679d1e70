"""Finished runs: the report that each leaves beside its weights, and the runs that it rests on."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mhex._files import read_json
from mhex._schema import build
from mhex.errors import ArgumentError
from mhex.lab.config.recipe import TrainingRecipe
from mhex.lab.train.checkpoint import write_text
from mhex.zoo.runs import REPORT, WEIGHTS


@dataclass(frozen=True)
class FinishedRun:
    """A finished run: its folder, its recipe, and everything in its report."""

    folder: Path
    recipe: TrainingRecipe
    report: dict[str, Any]

    @property
    def weights(self) -> Path:
        """The file of the weights that count."""
        return self.folder / WEIGHTS


def read_finished(folder: Path) -> FinishedRun | None:
    """Read the finished run in a folder; None if there is none. A damaged report is refused."""
    path = folder / REPORT
    if not path.is_file() or not (folder / WEIGHTS).is_file():
        return None
    try:
        report = read_json(path.read_text(encoding="utf-8"))
        return FinishedRun(folder, build(TrainingRecipe, report["recipe"], str(path)), report)
    except (ValueError, KeyError, TypeError) as error:
        raise ArgumentError(f"The report {path} cannot be read ({error}): remove it, or use --restart.") from error


def find_need(recipe: TrainingRecipe, name: str, out: Path) -> FinishedRun:
    """Find the finished run of a recipe that another one needs, beside the folder of the run that needs it."""
    run = read_finished(out.parent / name)
    if run is None:
        raise ArgumentError(
            f"{recipe.name} needs the weights of {name}, and {out.parent / name / WEIGHTS} is not there: add "
            f"--with-needs, or train it first with `mhex train {name} --out {out.parent / name}`."
        )
    return run


def lineage(run: FinishedRun) -> list[FinishedRun]:
    """Give all runs that a run rests on, itself last, each once and after what it needs."""
    runs: dict[Path, FinishedRun] = {}
    for name in run.recipe.needs:
        for ancestor in lineage(find_need(run.recipe, name, run.folder)):
            runs.setdefault(ancestor.folder, ancestor)
    return [*runs.values(), run]


def write_report(out: Path, recipe: TrainingRecipe, entries: dict[str, Any]) -> dict[str, Any]:
    """Write ``report.json`` with some entries beside the recipe, versions and date."""
    import accelerate
    import timm
    import torch
    import transformers

    import mhex

    versions = {module.__name__: module.__version__ for module in (mhex, torch, timm, transformers, accelerate)}
    report = {
        "name": recipe.name,
        "title": recipe.title,
        **entries,
        "date": time.strftime("%Y-%m-%d"),
        "versions": {**versions, "torch": torch.__version__.split("+")[0]},
        "digest": recipe.digest(),
        "recipe": recipe.as_dict(),
    }
    _write(report, out)
    return report


def rejudge(run: FinishedRun, split: str | None, test: dict[str, Any]) -> FinishedRun:
    """Write the report anew with another key ``data.test`` and entry ``test``; everything else in it stays."""
    data = run.recipe.data.model_copy(update={"test": split})
    recipe = run.recipe.model_copy(update={"data": data})
    report = {**run.report, "test": test, "recipe": recipe.as_dict()}
    _write(report, run.folder)
    return FinishedRun(run.folder, recipe, report)


def _write(report: dict[str, Any], out: Path) -> None:
    write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", out / REPORT)
