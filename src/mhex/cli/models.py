"""`mhex models`: the models that ship with mhex, and those that it builds."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from mhex.cli._console import busy, complain, say, show_table

app = typer.Typer(rich_markup_mode="rich")


@app.callback(invoke_without_command=True)
def models(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with data and licence in full.")] = False,
) -> None:
    """List the zoo: models that ship with mhex or are built by `mhex models build`, with accuracy, size and licence.

    Other models are given as timm:NAME[:weights.safetensors], hf:FOLDER or run:FOLDER (what `mhex train` made).
    """
    if context.invoked_subcommand is not None:
        return
    with busy("Reading the zoo"):
        from mhex.zoo import list_models

        rows = list_models()
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    if not rows:
        complain("The zoo is empty: no models ship with this installation.")
        return
    show_table(
        f"{len(rows)} models",
        ("name", "what", "accuracy", "parameters", "size", "licence of the data"),
        [
            (
                row["name"],
                row["title"],
                accuracy_words(row["accuracy"]),
                f"{row['parameters'] / 1e6:.2f} M",
                "to be built" if row["megabytes"] is None else f"{row['megabytes']} MB",
                licence_words(row["data"], row["licence"]),
            )
            for row in rows
        ],
        prose=("what", "accuracy", "licence of the data"),
    )


@app.command()
def build(
    name: Annotated[str, typer.Argument(help="A model of `mhex models` that is to be built.")],
    smoke: Annotated[
        bool, typer.Option("--smoke", help="A few steps on a few samples, in out/smoke/models, to try it.")
    ] = False,
) -> None:
    """Train a model of the zoo from the data folder, with all that it rests on; `zoo:NAME` then loads it.

    The same command goes on where a broken run stopped. Most recipes want a GPU; models of texts do without.
    """
    with busy("Loading the training"):
        from mhex.lab.train.loop import Pace
        from mhex.lab.train.run import build as build_model
        from mhex.zoo.places import MODELS_VARIABLE, models_folder
    name = name.removeprefix("zoo:")
    if smoke:  # no name must load the models of a trial
        os.environ[MODELS_VARIABLE] = str(Path("out") / "smoke" / "models")
    card = build_model(name, pace=Pace(progress=sys.stderr.isatty(), say=complain), smoke=smoke)
    trial = "a trial, which no name loads: " if smoke else ""
    say(f"zoo:{name}: {trial}{accuracy_words(card['accuracy'])}; in {models_folder()}")


def accuracy_words(accuracy: Mapping[str, Any] | None, digits: int = 1) -> str:
    """A measured accuracy in words: `breed 71.2 %, cat dog 97.0 % (test, 1000 images)`."""
    if not accuracy:
        return "not measured"
    shares = {name: share for name, share in accuracy.items() if isinstance(share, float)}
    words = ", ".join(f"{name.replace('_', ' ')} {100 * share:.{digits}f} %" for name, share in shares.items())
    kind = "texts" if "texts" in accuracy else "images"
    return f"{words} ({accuracy.get('split', 'unknown split')}, {accuracy.get(kind, '?')} {kind})"


def licence_words(data: Any, licence: str) -> str:
    """The licence of the data that a model learned from; the card's own words where it names none."""
    of_data = data.get("licence") if isinstance(data, Mapping) else None
    return of_data or licence.split(". ")[0].rstrip(".")
