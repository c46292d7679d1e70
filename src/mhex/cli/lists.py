"""`mhex methods` and `mhex metrics`: what there is to explain with, and to judge explanations by."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import typer

from mhex.cli._console import busy, show_table

Row = Mapping[str, Any]


def methods(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with papers, needs and options.")] = False,
) -> None:
    """List the methods: what each does, for what inputs, at what cost.

    F is a forward pass, B a backward pass, t both through the last block only.
    """
    columns: dict[str, Callable[[Row], str]] = {
        "name": lambda row: row["name"],
        "idea": lambda row: row["title"],
        "inputs": lambda row: row["modality"],
        "signed": lambda row: "yes" if row["signed"] else "no",
        "per class": lambda row: "yes" if row["class_specific"] else "no",
        "passes": lambda row: row["passes"],
        "options": lambda row: ", ".join(f"{name}={value}" for name, value in row["options"].items()),
    }
    _show("methods", columns, ("idea", "passes", "options"), as_json)


def metrics(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with papers, protocols and outputs.")] = False,
) -> None:
    """List the metrics: what each asks, which way is better, what it costs and needs.

    F is a forward pass, E an explanation, T the steps of a sweep, all per image, beside a clean pass for all metrics.
    """
    columns: dict[str, Callable[[Row], str]] = {
        "name": lambda row: row["name"],
        "what it asks": lambda row: row["title"],
        "inputs": lambda row: row["modality"],
        "better": lambda row: "higher" if row["higher_is_better"] else "lower",
        "passes": lambda row: row["passes"],
        "needs": lambda row: row["data"],
        "presets": lambda row: ", ".join(row["presets"]),
    }
    _show("metrics", columns, ("what it asks", "passes", "presets"), as_json)


def _show(kind: str, columns: Mapping[str, Callable[[Row], str]], prose: Sequence[str], as_json: bool) -> None:
    with busy(f"Reading the {kind}"):
        import mhex

        rows = mhex.list_methods() if kind == "methods" else mhex.list_metrics()
    if as_json:
        typer.echo(json.dumps(rows, indent=2, default=str))
        return
    cells = [[cell(row) for cell in columns.values()] for row in rows]
    show_table(f"{len(rows)} {kind}", list(columns), cells, prose=prose)
