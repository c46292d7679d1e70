"""`mhex methods`: what there is to explain with."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from mhex.cli._console import busy, show_table


def methods(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with papers, needs and options.")] = False,
) -> None:
    """List the methods: what each does, for what inputs, at what cost.

    F is a forward pass, B a backward pass, t both through the last block only.
    """
    with busy("Reading the methods"):
        import mhex

        rows = mhex.list_methods()
    if as_json:
        typer.echo(json.dumps(rows, indent=2, default=str))
        return
    show_table(
        f"{len(rows)} methods",
        ("name", "idea", "inputs", "signed", "per class", "passes", "options"),
        [
            (
                row["name"],
                row["title"],
                row["modality"],
                "yes" if row["signed"] else "no",
                "yes" if row["class_specific"] else "no",
                row["passes"],
                ", ".join(f"{name}={value}" for name, value in row["options"].items()),
            )
            for row in rows
        ],
        prose=("idea",),
        several=("passes", "options"),
    )
