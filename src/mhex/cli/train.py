"""`mhex train`: a network from a recipe file."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from mhex.cli._console import busy, complain, output_folder, say, show_table, stopping
from mhex.cli.lists import accuracy_words
from mhex.errors import ArgumentError

EXAMPLES = """
mhex train --list
mhex train blood-resnet18 --set train.epochs=2
mhex train my-recipe.yaml --out out/train/mine
mhex train pets-vit --with-needs
accelerate launch --num_processes 4 -m mhex train pets-vit
"""


def command(
    recipe: Annotated[str | None, typer.Argument(help="A recipe file, or the name of a packaged recipe.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder of the run. [default: out/train/NAME]", show_default=False)
    ] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key: train.epochs=2. Repeatable.")
    ] = None,
    restart: Annotated[bool, typer.Option("--restart", help="Begin anew, whatever the folder holds.")] = False,
    smoke: Annotated[bool, typer.Option("--smoke", help="A few steps on a few samples, in out/smoke/NAME.")] = False,
    needs: Annotated[
        bool, typer.Option("--with-needs", help="First train the recipes that this one starts from or learns from.")
    ] = False,
    listed: Annotated[bool, typer.Option("--list", help="List the packaged recipes and leave.")] = False,
    steps: Annotated[
        int | None, typer.Option("--checkpoint-steps", min=1, help="Write a checkpoint after so many steps.")
    ] = None,
    seconds: Annotated[
        float, typer.Option("--checkpoint-seconds", min=0, help="Write a checkpoint after so many seconds.")
    ] = 600.0,
) -> None:
    """Train a network from a recipe. The same command goes on where a broken run stopped.

    Ends with the accuracy on the test split, measured from the written weights file.
    """
    if listed:
        _list()
        return
    if recipe is None:
        raise ArgumentError("Expected a recipe: a file, or a name of `mhex train --list`.")
    with busy("Loading the training"):
        from mhex.lab.config.recipe import find_recipe, read_recipe
        from mhex.lab.train.loop import Pace
        from mhex.lab.train.run import train as run
        from mhex.lab.train.run import with_needs
    path = find_recipe(recipe)
    request = read_recipe(path, changes or ())
    folder = out or Path("out") / ("smoke" if smoke else "train") / request.name
    main = os.environ.get("RANK", "0") == "0"
    pace = Pace(steps=steps, seconds=seconds, progress=sys.stderr.isatty(), say=complain)
    for need in with_needs(request, path.parent) if needs else [request]:
        last = need.name == request.name
        place = folder if last else folder.parent / need.name
        source = path.name if last else need.name
        output_folder(place)
        # Needed runs that are there stay as they are.
        with stopping(lambda place=place: _words_after_stop(place)):  # type: ignore[misc]
            report = run(need.smoke() if smoke else need, place, pace=pace, restart=restart and last, source=source)
        if main:
            say(f"{need.name}: {accuracy_words(report['test'], digits=2)}; weights, report and logs in {place}")
        if main and last:
            complain(f"Explain with it: mhex explain INPUT --model run:{place}")


def _words_after_stop(place: Path) -> str:
    """The sentence after Ctrl-C: what is kept of a run, and how to go on."""
    from mhex.lab.train.checkpoint import latest_checkpoint

    newest = latest_checkpoint(place)
    if newest is None:
        return "There is no checkpoint yet, so the same command begins anew; --checkpoint-seconds says how often."
    step = int(newest.name.removeprefix("step-"))
    return f"The last checkpoint, after step {step}, is in {newest}; the same command goes on from there."


def _list() -> None:
    with busy("Reading the recipes"):
        from mhex.lab.config.recipe import packaged_recipes, read_recipe

        recipes = [read_recipe(path) for path in packaged_recipes().values()]
    rows = []
    for entry in recipes:
        epochs = entry.train.epochs if entry.train else "fitted"
        rows.append((entry.name, entry.title, entry.data.name, epochs, ", ".join(entry.needs)))
    headings = ("name", "what", "data", "epochs", "needs")
    show_table(f"{len(recipes)} recipes", headings, rows, prose=("what", "needs"))
