"""A finished run as a model to use: what `mhex.load("run:FOLDER")` gives."""

from __future__ import annotations

from pathlib import Path

from mhex.bundle import Bundle
from mhex.errors import ArgumentError
from mhex.lab.datasets import data_entry
from mhex.lab.train.card import REPORT, WEIGHTS, read_finished
from mhex.lab.train.run import trained
from mhex.zoo.residents import squash_of


def load_run(folder: str) -> Bundle:
    """Load the network that `mhex train` made, with its heads, preprocessing or tokenizer, and class names.

    Args:
        folder: Of the run.

    Raises:
        ArgumentError: The folder holds no finished run.
    """
    run = read_finished(Path(folder).expanduser())
    if run is None:
        raise ArgumentError(
            f"Expected a folder of `mhex train` with {REPORT} and {WEIGHTS}, but {folder} has not got both: name the "
            "folder that the command printed, or let the run end (the same command goes on)."
        )
    recipe, report = run.recipe, run.report
    network, _ = trained(recipe, report["classes"], run.weights)
    names = report["classes"] if recipe.unlabelled is None else None  # without labels, outputs are features
    image = data_entry(recipe.data.name).kind == "image"
    return Bundle(
        name=f"run:{folder}",
        model=network.model.eval(),
        preprocess=squash_of(recipe.view.as_card()) if image else None,
        tokenizer=network.tokenizer,
        class_names=names,
        card={"title": recipe.title, "accuracy": report["test"], "classes": names or []},
    )
