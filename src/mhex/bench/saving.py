"""A recommendation as a folder: a page to be looked at, and rows that evaluations are read from too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from mhex.bench import about, store
from mhex.bench.shown import MAPS, PHOTOS
from mhex.errors import ArgumentError

if TYPE_CHECKING:
    from mhex.bench.recommendation import Recommendation

NAME = "recommendation"
PAGE = f"{NAME}.html"
_KINDS = (store.ROWS, store.CURVES, PHOTOS, MAPS)
_BESIDE = ("run.json", "about.json")


def is_recommendation(folder: Path) -> bool:
    """Whether a folder holds one."""
    return (folder / f"{NAME}.json").is_file()


def check_folder(folder: Path) -> None:
    """Refuse a folder that holds the rows of something else."""
    if folder.is_dir() and store.numbered(folder) and not is_recommendation(folder):
        raise ArgumentError(
            f"Expected a folder for a recommendation, but {str(folder)!r} holds an evaluation; choose another one."
        )


def save(found: Recommendation, folder: Path) -> Path:
    """Write a recommendation; one that is there already is replaced.

    Args:
        found: The recommendation.
        folder: Made if it is not there.
    """
    check_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for path in [file for kind in _KINDS for _, file in store.numbered(folder, kind)]:
        path.unlink()
    for name in _BESIDE:
        (folder / name).unlink(missing_ok=True)
    (folder / f"{NAME}.json").write_text(json.dumps(found.as_dict(), indent=2), encoding="utf-8")
    (folder / f"{NAME}.txt").write_text(f"{found}\n", encoding="utf-8")
    report, shown = found.report, found.shown
    tables = [(store.ROWS, report.rows), (store.CURVES, found.curves)]
    if shown is not None:
        tables += [(PHOTOS, shown.photos.table()), (MAPS, shown.maps.table())]
    for kind, table in tables:
        if table is not None and table.num_rows:
            store.write(table, folder / f"{kind.name}-000000.parquet")
    (folder / "run.json").write_text(report.rows.column("run")[0].as_py(), encoding="utf-8")
    about.note(folder, found.made)
    (folder / PAGE).write_text(found.to_html(), encoding="utf-8")
    return folder
