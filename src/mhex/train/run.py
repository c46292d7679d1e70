"""Running a recipe from data to weights, report and card."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from mhex.data import ImageSet
from mhex.errors import ArgumentError
from mhex.train.check import check_recipe
from mhex.train.checkpoint import load_weights, transfer
from mhex.train.feeds import ImageFeed
from mhex.train.finish import complete, finished, write_outcome
from mhex.train.fit import fit
from mhex.train.loop import Loop
from mhex.train.losses import smoothed_targets
from mhex.train.machine import Pace, make_accelerator
from mhex.train.measure import make_objective
from mhex.train.networks import Network, make_network
from mhex.train.objective import Ensemble, Objective
from mhex.train.parameters import freeze
from mhex.train.recipe import Recipe
from mhex.train.report import REPORT, WEIGHTS, find_need, read_finished
from mhex.train.resume import FOLDER, refuse_other_recipe
from mhex.train.samples import Samples, check_test, load_samples, make_feed
from mhex.train.seeds import derive
from mhex.train.trial import check_length, try_step
from mhex.train.unlabelled import TwoViews


def train(
    recipe: Recipe, out: Path, *, pace: Pace | None = None, restart: bool = False, source: str = ""
) -> dict[str, Any]:
    """Run a recipe; a run that was broken off goes on, a finished one is left as it is.

    Torch's global generator is seeded anew in every step.

    Args:
        recipe: The recipe.
        out: Folder of the run; those of recipes it needs lie beside it.
        pace: How often to write checkpoints, and where to talk.
        restart: Begin anew, whatever the folder holds of this or another recipe.
        source: Name of the recipe's file, for messages.

    Returns:
        The report, as written to ``report.json``.

    Raises:
        ArgumentError: The recipe cannot be run, or the folder holds the work of another recipe.
        DataMissingError: Data are missing; the message says what to place where.
        DivergedError: The loss is no number any more.
    """
    pace = pace or Pace()
    check_recipe(recipe, source or recipe.name)
    accelerator = make_accelerator("no" if recipe.train is None else recipe.train.precision)
    if not accelerator.is_main_process:
        pace = replace(pace, say=lambda line: None, progress=False)
    if restart and accelerator.is_main_process:
        clear(out)
    accelerator.wait_for_everyone()
    done = read_finished(out)
    if done is not None:
        refuse_other_recipe(out, done.recipe, recipe)
        pace.say(f"{recipe.name}: already there")
    elif recipe.fit is None:
        learn(recipe, out, accelerator, pace)
    elif accelerator.is_main_process:
        fit(recipe, recipe.fit, out, accelerator.device, pace)
    if accelerator.is_main_process:
        complete(recipe, out, accelerator.device, pace.say)
    accelerator.wait_for_everyone()
    return finished(out).report


def learn(recipe: Recipe, out: Path, accelerator: Accelerator, pace: Pace) -> None:
    """Train the network of a recipe, or go on with it; write weights and report."""
    for name in recipe.needs:
        find_need(recipe, name, out)
    samples = load_samples(recipe)
    check_test(recipe)
    torch.manual_seed(derive(recipe.seed, "weights"))
    network, objective = make_objective(recipe, samples.train.classes, training=True)
    check_length(recipe, network)
    begin(recipe, network, out)
    freeze(network.model, recipe.training.freeze, network.classifier)
    loop = make_loop(recipe, out, accelerator, network, objective, samples)
    try_step(loop)
    resumed = loop.resume()
    count, batch = len(samples.kept), recipe.training.batch
    pace.say(
        f"{recipe.name}: {recipe.training.epochs} epochs of {count} samples, {loop.steps} steps"
        + (f"; going on after step {loop.progress.step}" if resumed else "")
    )
    out.mkdir(parents=True, exist_ok=True)
    if batch > count:
        pace.say(f"{recipe.name}: train.batch is {batch}, so every step sees the {count} samples more than once")
    loop.run(pace)
    if accelerator.is_main_process:
        write_outcome(recipe, out, loop, network)


def clear(out: Path) -> None:
    """Remove what a run wrote, and nothing else."""
    for name in (FOLDER, "tensorboard", "shipped", "model"):
        shutil.rmtree(out / name, ignore_errors=True)
    for name in (REPORT, WEIGHTS, "last.safetensors"):
        (out / name).unlink(missing_ok=True)


def begin(recipe: Recipe, network: Network, out: Path) -> None:
    """Load the weights that a recipe starts from."""
    if recipe.model.start is not None:
        need = find_need(recipe, recipe.model.start, out)
        same = need.recipe.data.name == recipe.data.name
        transfer(network.model, need.weights, network.classifier, same_data=same)


def make_loop(
    recipe: Recipe, out: Path, accelerator: Accelerator, network: Network, objective: Objective, samples: Samples
) -> Loop:
    """Put everything on the device."""
    device, tokenizer = accelerator.device, network.tokenizer
    group_of = samples.train.group_of if isinstance(samples.train, ImageSet) else None
    feed = make_feed(recipe, samples.train, tokenizer, device, samples.kept, vary=True)
    if recipe.unlabelled is not None and isinstance(feed, ImageFeed):
        feed = TwoViews(feed)
    validation = None
    # Without labels there is no accuracy to choose by.
    if samples.validation is not None and recipe.unlabelled is None:
        validation = make_feed(recipe, samples.validation, tokenizer, device, samples.chosen)
    return Loop(
        recipe,
        out,
        accelerator,
        objective,
        feed,
        validation,
        smoothed_targets(len(samples.train.classes), recipe.training.smoothing, group_of),
        make_teacher(recipe, samples.train.classes, out),
    )


def make_teacher(recipe: Recipe, classes: tuple[str, ...], out: Path) -> Ensemble | None:
    """The teachers of a recipe, built as their own reports say.

    Raises:
        ArgumentError: A teacher is not there, or has learned other data.
    """
    if recipe.distil is None:
        return None
    members, views = [], []
    for name in recipe.distil.teachers:
        need = find_need(recipe, name, out)
        if wrong := _unfit(need.recipe, recipe):
            raise ArgumentError(
                f"{name} cannot teach {recipe.name}: a teacher should be a plain network that learned the same data, "
                f"{recipe.data.name}, and this one {wrong}."
            )
        member = make_network(need.recipe, classes, training=False).model
        load_weights(member, need.weights)
        members.append(member.eval())
        views.append(need.recipe.view)
    return Ensemble(members, views)


def _unfit(teacher: Recipe, recipe: Recipe) -> str:
    """Why one recipe cannot teach another; empty if it can."""
    if teacher.heads is not None:
        return "has heads"
    if teacher.unlabelled is not None:
        return "learned without labels, so it has no classifier"
    return "learned other data" if teacher.data.name != recipe.data.name else ""
