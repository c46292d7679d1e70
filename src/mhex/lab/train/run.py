"""Running a recipe from data to weights, report and card."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from mhex._files import folder_aside
from mhex.errors import ArgumentError
from mhex.heads.scaffold import Scaffold
from mhex.lab.config.recipe import FitPart, Recipe
from mhex.lab.config.recipe_check import check_recipe
from mhex.lab.datasets import ImageSet, data_entry
from mhex.lab.datasets.catalogue import AnySet
from mhex.lab.train.card import (
    REPORT,
    WEIGHTS,
    Finished,
    find_need,
    is_shipped,
    read_finished,
    rejudge,
    ship,
    write_report,
)
from mhex.lab.train.checkpoint import (
    FOLDER,
    latest_checkpoint,
    load_weights,
    read_tensors,
    refuse_other_recipe,
    transfer,
    write_tensors,
)
from mhex.lab.train.dry_run import check_length, try_answer, try_step
from mhex.lab.train.evaluate import BATCH, NEIGHBOURS, accuracy, answers, features_of, neighbour_votes
from mhex.lab.train.loop import Loop
from mhex.lab.train.networks import Network, make_network
from mhex.lab.train.objective import Ensemble, HeadsObjective, Objective, attach_heads, smoothed_targets
from mhex.lab.train.optimiser import HEADS, PROJECTOR, freeze
from mhex.lab.train.samples import (
    Feed,
    ImageFeed,
    Inputs,
    Samples,
    check_test,
    derive,
    judging_split,
    load_samples,
    load_test,
    make_feed,
    row_batches,
)
from mhex.lab.train.settings import Pace, make_accelerator
from mhex.lab.train.unlabelled import ContrastObjective, TwoViews


def make_objective(recipe: Recipe, classes: tuple[str, ...], *, training: bool) -> tuple[Network, Objective]:
    """The network of a recipe with its heads, and what it minimises; with a projector only to train without labels."""
    network = make_network(recipe, classes, training=training)
    if recipe.heads is None:
        compiled = training and recipe.training.compile
        if recipe.unlabelled is not None and training:
            features: Any = network.model.num_features
            return network, ContrastObjective(network.model, features, recipe.unlabelled, compile=compiled)
        return network, Objective(network.model, recipe.distil, compile=compiled)
    scaffold = attach_heads(network.model, len(classes), recipe.heads)
    return network, HeadsObjective(network.model, scaffold, recipe.heads, recipe.distil)


def trained(recipe: Recipe, classes: Sequence[str], weights: Path) -> tuple[Network, Objective]:
    """The network of a recipe, built anew, with the weights of a file."""
    network, objective = make_objective(recipe, tuple(classes), training=False)
    load_weights(network.model, weights, over=recipe.model.source in ("minilm", "zoo"))
    return network, objective


def measure(recipe: Recipe, weights: Path, judged: AnySet, device: torch.device) -> dict[str, Any]:
    """Build the network anew, load a weights file and measure it.

    Returns:
        The entry ``accuracy`` of a card: shares of right answers in 0..1, the split, and the number of samples. A
        network that learned without labels has no answers; its entries begin with ``knn_`` and tell of the vote of the
        nearest training samples.
    """
    entry = data_entry(recipe.data.name)
    network, objective = trained(recipe, judged.classes, weights)
    feed = make_feed(recipe, judged, network.tokenizer, device)
    groups = judged.group_of if isinstance(judged, ImageSet) else None
    names = {"class": entry.answers, "group": entry.group_answers}
    if recipe.unlabelled is not None:
        return {
            **_neighbours(recipe, objective.to(device), feed, groups, names),
            "split": judged.split,
            "images": len(judged),
        }
    said = answers(objective.to(device), feed)
    shares = accuracy(said.probabilities, judged.labels, groups)
    found: dict[str, Any] = {names[key]: round(value, 4) for key, value in shares.items()}
    if said.heads:
        found["heads"] = [round(share, 4) for share in said.heads]
    return {**found, "split": judged.split, "images" if entry.kind == "image" else "texts": len(judged)}


def _neighbours(
    recipe: Recipe, objective: Objective, feed: Feed, groups: Sequence[int] | None, names: Mapping[str, str]
) -> dict[str, Any]:
    """Shares of right votes of the nearest training samples by cosine of the features, each as ``knn_...``."""
    samples = load_samples(recipe)
    known = make_feed(recipe, samples.train, None, feed.labels.device, samples.kept)
    votes = neighbour_votes(
        features_of(objective, known), known.labels, features_of(objective, feed), len(samples.train.classes)
    )
    shares = accuracy(votes, feed.labels.cpu(), groups)
    found: dict[str, Any] = {f"knn_{names[key]}": round(value, 4) for key, value in shares.items()}
    return {**found, "neighbours": NEIGHBOURS, "bank": len(known)}


class Batches:
    """The samples of a feed with their labels, batch by batch, as often as wanted.

    Args:
        feed: The samples.
    """

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self.rows = row_batches(len(feed), BATCH)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[tuple[Inputs, Tensor]]:
        for rows in self.rows:
            yield self.feed.plain(rows), self.feed.labels[rows.to(self.feed.labels.device)]


def fit(recipe: Recipe, part: FitPart, out: Path, device: torch.device, pace: Pace) -> None:
    """Fit the heads of a recipe; write them alone, measure the file, write the report.

    Args:
        recipe: With heads on a model of the zoo.
        part: How to fit.
        out: Folder of the run.
        device: Where to compute.
        pace: Where to talk.
    """
    samples = load_samples(recipe)
    check_test(recipe)
    network, objective = make_objective(recipe, samples.train.classes, training=False)
    check_length(recipe, network)
    objective.to(device)
    scaffold = Scaffold(network.model)
    feed = make_feed(recipe, samples.train, network.tokenizer, device, samples.kept)
    try_answer(recipe, objective, feed)
    pace.say(f"{recipe.name}: {len(scaffold.names)} heads by {part.method} on {len(feed)} samples")
    found = scaffold.fit(
        Batches(feed), part.method, balance=part.balance, strength=part.strength, progress=pace.progress
    )
    out.mkdir(parents=True, exist_ok=True)
    state = {name: value for name, value in network.model.state_dict().items() if name.startswith(HEADS)}
    write_tensors(state, out / WEIGHTS, {"name": recipe.name, "digest": recipe.digest()})
    entries = {
        "test": measure(recipe, out / WEIGHTS, load_test(recipe), device),
        "classes": list(samples.train.classes),
        "fit": found.to_dict(),
        "epochs": [],
        "seconds": round(found.seconds, 1),
        "parameters": sum(parameter.numel() for parameter in network.model.parameters()),
        "device": device.type,
    }
    write_report(out, recipe, entries)


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
