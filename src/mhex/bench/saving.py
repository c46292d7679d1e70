"""A recommendation as a folder: a page to be looked at, and rows that evaluations are read from too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from mhex._files import folder_aside, write_text
from mhex.bench import about, store
from mhex.bench.shown import MAPS, PHOTOS
from mhex.errors import ArgumentError

if TYPE_CHECKING:
    from mhex.bench.recommendation import Recommendation

NAME = "recommendation"
PAGE = f"{NAME}.html"
_KINDS = (store.ROWS, store.CURVES, PHOTOS, MAPS)
_JSON = f"{NAME}.json"


def is_recommendation(folder: Path) -> bool:
    """Whether a folder holds one."""
    return (folder / _JSON).is_file()


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
    with folder_aside(folder / ".partial") as aside:
        _write(found, aside)
        for path in [file for kind in _KINDS for _, file in store.numbered(folder, kind)]:
            path.unlink()
        # The JSON file, which says that the folder holds a recommendation, comes before the rows.
        for file in sorted(aside.iterdir(), key=lambda file: file.name != _JSON):
            file.replace(folder / file.name)
    return folder


def _write(answer: Recommendation, folder: Path) -> None:
    write_text(json.dumps(answer.as_dict(), indent=2), folder / _JSON)
    write_text(f"{answer}\n", folder / f"{NAME}.txt")
    report, shown = answer.report, answer.shown
    tables = [(store.ROWS, report.rows), (store.CURVES, answer.curves)]
    if shown is not None:
        tables += [(PHOTOS, shown.photos.table()), (MAPS, shown.maps.table())]
    for kind, table in tables:
        if table is not None and table.num_rows:
            store.write(table, folder / f"{kind.name}-000000.parquet")
    write_text(report.rows.column("run")[0].as_py(), folder / "run.json")
    about.note(folder, answer.made, done=max(line.images for line in answer.table), lost=answer.lost)
    write_text(answer.to_html(), folder / PAGE)
