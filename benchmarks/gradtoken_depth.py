"""GradToken's scores against the lowest block of its propagation, from the rows of a suite."""

from __future__ import annotations

import json
import re
from pathlib import Path

import mhex
from mhex.judge.tables import Cell
from mhex.viz.charts import Band
from study_charts import band_figure
from study_page import save_picture

METRIC = "segmentation:gt"
OUTPUTS = {"pacc": "pixel accuracy", "ap2": "average precision", "miou": "mean IoU"}
_BLOCK = re.compile(r"gradtoken \(start_block=(\d+)\)")


def series(cells: list[Cell]) -> dict[str, dict[int, Cell]]:
    """For each output, cells by lowest block; the default is block 1, and no aggregation block 0 for now."""
    found: dict[str, dict[int, Cell]] = {output: {} for output in OUTPUTS}
    for cell in cells:
        if cell.metric != METRIC or cell.output not in found:
            continue
        number = _BLOCK.fullmatch(cell.method)
        if cell.method == "gradtoken":
            found[cell.output][1] = cell
        elif cell.method == "gradtoken (aggregation=none)":
            found[cell.output][0] = cell
        elif number:
            found[cell.output][int(number[1])] = cell
    return found


def depth_part(suite: Path, images: Path) -> tuple[list[str], str]:
    """The series as a picture, and the reading.

    Args:
        suite: Folder of the suite, with a folder of rows for each model.
        images: Where the picture goes.
    """
    told = json.loads((suite / "suite.json").read_text(encoding="utf-8"))
    label = next(iter(told["models"]))
    found = series(mhex.Report.load(suite / label).summary())
    lowest = sorted({block for cells in found.values() for block in cells if block})
    panels: dict[str, dict[str, Band]] = {}
    for output, words in OUTPUTS.items():
        own = found[output]
        lines = {"propagation": _band([own[block] for block in lowest])}
        if 0 in own:
            lines["none"] = _band([own[0]] * len(lowest))
        panels[words] = lines
    record = told["models"][label]
    sheet = band_figure(
        "How far down attention is joined",
        lowest,
        panels,
        "lowest block",
        f"{record['images']} photos, {record['model']}; bands are 95 % bootstrap intervals. The dashed line needs no "
        "attention of lower blocks; block 1 is the default.",
        controls=["none"],
    )
    picture = save_picture(sheet, images / "gradtoken-depth.png", "Three scores of segmentation by lowest block")
    return ["## How far down (figure 11)", f"From the rows of `{told['command']}`.", picture], reading(found)


def _band(cells: list[Cell]) -> Band:
    return [cell.value for cell in cells], [cell.low for cell in cells], [cell.high for cell in cells]


def reading(found: dict[str, dict[int, Cell]]) -> str:
    """What the series shows, in words."""
    said = []
    for output, words in OUTPUTS.items():
        own = {block: cell for block, cell in found[output].items() if block}
        best = max(own, key=lambda block: own[block].value)
        line = f"- {words}: highest with block {best} as the lowest ({own[best].value:.3f}), block 1 {own[1].value:.3f}"
        if 0 in found[output]:
            line += f", without propagation {found[output][0].value:.3f}"
        said.append(line + ".")
    return "\n".join(said)
