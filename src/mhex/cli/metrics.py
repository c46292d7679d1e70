"""`mhex metrics`: what there is to judge explanations by."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from mhex.cli._console import busy, show_table


def metrics(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with papers, protocols and outputs.")] = False,
) -> None:
    """List the metrics: what each asks, which way is better, what it costs and needs.

    F is a forward pass, E an explanation, T the steps of a sweep, all per image, beside a clean pass for all metrics.
    """
    with busy("Reading the metrics"):
        import mhex

        rows = mhex.list_metrics()
    if as_json:
        typer.echo(json.dumps(rows, indent=2, default=str))
        return
    show_table(
        f"{len(rows)} metrics",
        ("name", "what it asks", "inputs", "better", "passes", "needs", "presets"),
        [
            (
                row["name"],
                row["title"],
                row["modality"],
                "higher" if row["higher_is_better"] else "lower",
                row["passes"],
                row["data"],
                ", ".join(row["presets"]),
            )
            for row in rows
        ],
        prose=("what it asks",),
        several=("passes", "presets"),
    )
