"""`mhex methods`, `mhex metrics` and `mhex models`: what there is to explain with, to judge by, and to explain."""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from mhex.cli._console import busy, complain, say, show_table

Row = Mapping[str, Any]
models_app = typer.Typer(rich_markup_mode="rich")


def methods(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with papers, needs and options.")] = False,
) -> None:
    """List the methods: what each does, for what inputs, at what cost.

    F is a forward pass, B a backward pass, t both through the last block only.
    """
    with busy("Reading the methods"):
        import mhex

        rows = mhex.list_methods()
    columns: dict[str, Callable[[Row], str]] = {
        "name": lambda row: row["name"],
        "idea": lambda row: row["title"],
        "inputs": lambda row: row["modality"],
        "signed": lambda row: "yes" if row["signed"] else "no",
        "per class": lambda row: "yes" if row["class_specific"] else "no",
        "passes": lambda row: row["passes"],
        "options": lambda row: ", ".join(f"{name}={value}" for name, value in row["options"].items()),
    }
    _show("methods", rows, columns, ("idea", "passes", "options"), as_json)


def metrics(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with papers, protocols and outputs.")] = False,
) -> None:
    """List the metrics: what each asks, which way is better, what it costs and needs.

    F is a forward pass, E an explanation, T the steps of a sweep, all per image, beside a clean pass for all metrics.
    """
    with busy("Reading the metrics"):
        import mhex

        rows = mhex.list_metrics()
    columns: dict[str, Callable[[Row], str]] = {
        "name": lambda row: row["name"],
        "what it asks": lambda row: row["title"],
        "inputs": lambda row: row["modality"],
        "better": lambda row: "higher" if row["higher_is_better"] else "lower",
        "passes": lambda row: row["passes"],
        "needs": lambda row: row["data"],
        "presets": lambda row: ", ".join(row["presets"]),
    }
    _show("metrics", rows, columns, ("what it asks", "passes", "presets"), as_json)


@models_app.callback(invoke_without_command=True)
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
    if not rows and not as_json:
        complain("The zoo is empty: no models ship with this installation.")
        return
    columns: dict[str, Callable[[Row], str]] = {
        "name": lambda row: row["name"],
        "what": lambda row: row["title"],
        "accuracy": lambda row: accuracy_words(row["accuracy"]),
        "parameters": lambda row: f"{row['parameters'] / 1e6:.2f} M",
        "size": lambda row: "to be built" if row["megabytes"] is None else f"{row['megabytes']} MB",
        # Of the data that the model learned from; the card's own words where it names none.
        "licence of the data": lambda row: row["data"].get("licence") or row["licence"].split(". ")[0].rstrip("."),
    }
    _show("models", rows, columns, ("what", "accuracy", "licence of the data"), as_json)


def _show(
    kind: str, rows: Sequence[Row], columns: Mapping[str, Callable[[Row], str]], prose: Sequence[str], as_json: bool
) -> None:
    if as_json:
        typer.echo(json.dumps(rows, indent=2, default=str))
        return
    cells = [[cell(row) for cell in columns.values()] for row in rows]
    show_table(f"{len(rows)} {kind}", list(columns), cells, prose=prose)


@models_app.command()
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
        from mhex.zoo.shipped import MODELS_VARIABLE, models_folder
    name = name.removeprefix("zoo:")
    if smoke:  # no name must load the models of a trial
        os.environ[MODELS_VARIABLE] = str(Path("out") / "smoke" / "models")
    card = build_model(name, pace=Pace(progress=sys.stderr.isatty(), say=complain), smoke=smoke)
    trial = "a trial, which no name loads: " if smoke else ""
    say(f"zoo:{name}: {trial}{accuracy_words(card['accuracy'])}; in {models_folder()}")


def accuracy_words(accuracy: Row | None, digits: int = 1) -> str:
    """A measured accuracy in words: `breed 71.2 %, cat dog 97.0 % (test, 1000 images)`."""
    if not accuracy:
        return "not measured"
    shares = {name: share for name, share in accuracy.items() if isinstance(share, float)}
    words = ", ".join(f"{name.replace('_', ' ')} {100 * share:.{digits}f} %" for name, share in shares.items())
    kind = "texts" if "texts" in accuracy else "images"
    return f"{words} ({accuracy.get('split', 'unknown split')}, {accuracy.get(kind, '?')} {kind})"
