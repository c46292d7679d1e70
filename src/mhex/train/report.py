"""The report of a finished run, and finding the runs that another one needs."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mhex._json import read_json
from mhex.errors import ArgumentError
from mhex.train.checkpoint import write_text
from mhex.train.recipe import Recipe
from mhex.train.recipe_files import restore_recipe

REPORT = "report.json"
WEIGHTS = "weights.safetensors"


@dataclass(frozen=True)
class Finished:
    """A finished run.

    Attributes:
        folder: Where it lies.
        recipe: What was run.
        report: Everything it told.
    """

    folder: Path
    recipe: Recipe
    report: dict[str, Any]

    @property
    def weights(self) -> Path:
        """The file of the weights that count."""
        return self.folder / WEIGHTS


def read_finished(folder: Path) -> Finished | None:
    """The finished run in a folder; None if there is none.

    Raises:
        ArgumentError: The report is damaged.
    """
    path = folder / REPORT
    if not path.is_file() or not (folder / WEIGHTS).is_file():
        return None
    try:
        report = read_json(path.read_text(encoding="utf-8"))
        return Finished(folder, restore_recipe(report["recipe"], str(path)), report)
    except (ValueError, KeyError, TypeError) as error:
        raise ArgumentError(f"The report {path} cannot be read ({error}): remove it, or use --restart.") from error


def find_need(recipe: Recipe, name: str, out: Path) -> Finished:
    """The finished run of a recipe that another one needs, looked for beside that one's folder.

    Args:
        recipe: The one that needs it.
        name: The needed recipe.
        out: Folder of the needing run.

    Raises:
        ArgumentError: It is not there.
    """
    found = read_finished(out.parent / name)
    if found is None:
        raise ArgumentError(
            f"{recipe.name} needs the weights of {name}, and {out.parent / name / WEIGHTS} is not there: add "
            f"--with-needs, or train it first with `mhex train {name} --out {out.parent / name}`."
        )
    return found


def lineage(run: Finished) -> list[Finished]:
    """All runs that a run rests on, itself last, each once and after what it needs."""
    runs: list[Finished] = []
    for name in run.recipe.needs:
        known = {one.folder for one in runs}
        runs += [one for one in lineage(find_need(run.recipe, name, run.folder)) if one.folder not in known]
    return [*runs, run]


def write_report(out: Path, recipe: Recipe, entries: dict[str, Any]) -> dict[str, Any]:
    """Write ``report.json`` with the recipe, versions and date beside what is given."""
    import accelerate
    import timm
    import torch
    import transformers

    import mhex

    report = {
        "name": recipe.name,
        "title": recipe.title,
        **entries,
        "date": time.strftime("%Y-%m-%d"),
        "versions": {
            "mhex": mhex.__version__,
            "torch": torch.__version__.split("+")[0],
            "timm": timm.__version__,
            "transformers": transformers.__version__,
            "accelerate": accelerate.__version__,
        },
        "digest": recipe.digest(),
        "recipe": recipe.as_dict(),
    }
    _write(report, out)
    return report


def rejudge(run: Finished, split: str | None, test: dict[str, Any]) -> Finished:
    """Write the report anew with what another test split says; everything else in it stays.

    Args:
        run: The finished run.
        split: Key ``data.test`` of the recipe; None for the data set's own split.
        test: The entry ``test``.
    """
    recipe = replace(run.recipe, data=replace(run.recipe.data, test=split))
    report = {**run.report, "test": test, "recipe": recipe.as_dict()}
    _write(report, run.folder)
    return Finished(run.folder, recipe, report)


def _write(report: dict[str, Any], out: Path) -> None:
    write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", out / REPORT)
