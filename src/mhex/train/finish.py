"""From the last step to files for others: every step can be broken off, and is done again where its file is missing."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from mhex._files import folder_aside
from mhex.data.catalogue import AnySet
from mhex.errors import ArgumentError
from mhex.train.card import is_shipped, ship
from mhex.train.checkpoint import load_weights, read_tensors, write_tensors
from mhex.train.loop import Loop
from mhex.train.measure import measure
from mhex.train.networks import Network
from mhex.train.parameters import PROJECTOR
from mhex.train.recipe import Recipe
from mhex.train.report import REPORT, WEIGHTS, Finished, read_finished, rejudge, write_report
from mhex.train.resume import FOLDER, latest_checkpoint
from mhex.train.samples import judging_split, load_test


def write_outcome(recipe: Recipe, out: Path, loop: Loop, network: Network) -> None:
    """Write the weights of a run that has come to its end, measure the file, and write the report.

    A run that is broken off here goes on from its last checkpoint, and comes here again at once.
    """
    progress, newest = loop.progress, latest_checkpoint(out)
    best = newest / "best.safetensors" if newest is not None else None
    keep_best = recipe.training.keep == "best" and best is not None and best.is_file()
    facts = {"name": recipe.name, "digest": recipe.digest()}
    if keep_best and best is not None:
        write_tensors(read_tensors(best), out / WEIGHTS, {**facts, "epoch": str(progress.best_epoch)})
        write_tensors(loop.weights(), out / "last.safetensors", facts)
    else:
        write_tensors(loop.weights(), out / WEIGHTS, {**facts, "epoch": str(len(progress.history))})
    judged = load_test(recipe)
    test = measure(recipe, out / WEIGHTS, judged, loop.accelerator.device)
    if network.tokenizer is not None and recipe.heads is None:
        load_weights(network.model, out / WEIGHTS)
        save: Callable[..., Any] = network.model.save_pretrained  # type: ignore[assignment]
        with folder_aside(out / ".model.partial") as aside:
            save(aside)
            network.tokenizer.save_pretrained(aside)
            shutil.rmtree(out / "model", ignore_errors=True)
            aside.rename(out / "model")
    write_report(
        out,
        recipe,
        {
            "test": test,
            "classes": list(judged.classes),
            "best_epoch": progress.best_epoch if keep_best else None,
            "epochs": progress.history,
            "seconds": round(progress.seconds, 1),
            "steps": progress.step,
            "parameters": sum(
                value.numel() for name, value in network.model.named_parameters() if not name.startswith(PROJECTOR)
            ),
            "processes": loop.accelerator.num_processes,
            "device": loop.accelerator.device.type,
            "precision": str(loop.accelerator.mixed_precision),
        },
    )


def complete(recipe: Recipe, out: Path, device: torch.device, say: Callable[[str], None]) -> None:
    """Do what is still to be done with a run whose report is there: judge it by another split, ship it, tidy up.

    Args:
        recipe: What is asked for now; it may name another test split than the report, or ask for shipping first now.
        out: Folder of the run.
        device: Where to measure.
        say: Takes lines about the progress.
    """
    run = finished(out)
    judged: AnySet | None = None
    if judging_split(recipe) != run.report["test"]["split"]:
        say(f"{recipe.name}: judged by the split {judging_split(recipe)}")
        judged = load_test(recipe)
        run = rejudge(run, recipe.data.test, measure(recipe, run.weights, judged, device))
    if recipe.ship is not None and not is_shipped(run, recipe.ship):
        say(f"{recipe.name}: shipping")
        samples = load_test(recipe) if judged is None else judged
        ship(run, recipe.ship, samples, lambda path: measure(recipe, path, samples, device))
    shutil.rmtree(out / FOLDER, ignore_errors=True)


def finished(out: Path) -> Finished:
    """The finished run in a folder.

    Raises:
        ArgumentError: There is none.
    """
    run = read_finished(out)
    if run is None:
        raise ArgumentError(f"{out} should hold {REPORT} and {WEIGHTS} now, and does not: something removed them.")
    return run
