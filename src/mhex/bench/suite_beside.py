"""Our numbers beside those of a paper, in Markdown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from mhex.bench.suite_papers import PublishedPart
from mhex.bench.tables import Cell
from mhex.perturb.correlation import rank_correlation

_FEW = 3  # methods, below which an order says nothing
_OUR_COLUMNS = 2  # of ours in one table; each has a published one beside it


def beside(published: PublishedPart, cells: Sequence[Cell], seed: int) -> str:
    """Our numbers beside those of a paper, for the methods and columns that both have; empty without any.

    Args:
        published: Of the paper.
        cells: Ours.
        seed: Of the suite, which names of columns hold where it is not 0.
    """
    place = {(cell.method, without_seed(cell.column, seed)): cell for cell in cells}
    methods = [name for name in published.values if any(method == name for method, _ in place)]
    asked = dict.fromkeys(column for name in methods for column in published.values[name])
    columns = [name for name in asked if any(column == name for _, column in place)]
    if not methods or not columns:
        return ""
    tables = [_table(published, columns[at : at + _OUR_COLUMNS], methods, place) for at in range(0, len(columns), _OUR_COLUMNS)]
    orders = [_order(published, column, methods, place) for column in columns]
    head = f"### Beside {published.paper}, {published.table}"
    note = (
        f"{' '.join(published.note.split())}{' Published per cent are shown as shares.' if published.percent else ''}"
    )
    listed = "\n".join(f"- {one}" for one in orders if one)
    return "\n\n".join(part for part in (head, note, *tables, listed) if part)


def _table(
    published: PublishedPart, columns: Sequence[str], methods: Sequence[str], place: Mapping[tuple[str, str], Cell]
) -> str:
    heads = [f"{name} | published" for name in columns]
    lines = [f"| method | {' | '.join(heads)} |", "|---" * (1 + 2 * len(columns)) + "|"]
    for method in methods:
        row = []
        for column in columns:
            cell, value = place.get((method, column)), published.values[method].get(column)
            row += ["" if cell is None else cell.text, "—" if value is None else f"{_scaled(published, value):.4g}"]
        lines.append(f"| {method} | {' | '.join(row)} |")
    return "\n".join(lines)


def without_seed(column: str, seed: int) -> str:
    """A column as it is called where the seed is 0, which names it for all seeds."""
    return column.replace(f"(seed={seed}, ", "(").replace(f" (seed={seed})", "")


def _scaled(published: PublishedPart, value: float) -> float:
    return value / 100 if published.percent else float(value)


def _order(published: PublishedPart, column: str, methods: Sequence[str], place: Mapping[tuple[str, str], Cell]) -> str:
    """Whether both put methods in the same order."""
    pairs = [
        (place[method, column].value, float(published.values[method][column]))
        for method in methods
        if (method, column) in place and column in published.values[method]
    ]
    pairs = [pair for pair in pairs if not math.isnan(pair[0])]
    if len(pairs) < _FEW:
        return ""
    ours, theirs = torch.tensor(pairs, dtype=torch.float64).mT
    rho = float(rank_correlation(ours, theirs))
    return "" if math.isnan(rho) else f"{column}: order of {len(pairs)} methods, Spearman's rho {rho:.2f}."
