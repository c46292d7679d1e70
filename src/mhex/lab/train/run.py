"""Running a recipe, and those that it needs, from data to weights, report and card."""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from mhex._files import folder_aside, replacing
from mhex.errors import ArgumentError, unknown_name
from mhex.heads.scaffold import Scaffold
from mhex.lab.config.recipe import RecipeFit, TrainingRecipe, find_named, packaged_recipes, read_recipe
from mhex.lab.train.checkpoint import FOLDER, latest_checkpoint, load_weights, read_tensors, transfer, write_tensors
from mhex.lab.train.dry_run import check_length, check_recipe, reading, try_step
from mhex.lab.train.evaluate import make_objective, measure
from mhex.lab.train.loop import LOGS, Loop, Pace, make_accelerator
from mhex.lab.train.networks import Network, make_network
from mhex.lab.train.objective import Ensemble, Objective, smoothed_targets
from mhex.lab.train.optimiser import HEADS, PROJECTOR, freeze
from mhex.lab.train.report import SHIPPED, find_need, finished, is_shipped, read_finished, rejudge, ship, write_report
from mhex.lab.train.samples import FeedBatches, RecipeSamples, derive, judging_split, load_samples, load_test, make_feed
from mhex.zoo.runs import REPORT, WEIGHTS
from mhex.zoo.shipped import folder_of, models_folder


def train(
    recipe: TrainingRecipe, out: Path, *, pace: Pace | None = None, restart: bool = False, source: str = ""
) -> dict[str, Any]:
    """Run a recipe in the folder `out`, and give its report; a run that was broken off goes on, a finished one stays.

    The runs of recipes that it needs lie beside the folder. With `restart` it begins anew, whatever the folder holds;
    `source` names the recipe's file in messages. Torch's global generator is seeded anew in every step.

    Raises:
        ArgumentError: The recipe cannot be run, or the folder holds the work of another recipe.
        DataMissingError: Data are missing; the message says what to place where.
        DivergedError: The loss is no number any more.
    """
    pace = pace or Pace()
    check_recipe(recipe, source or recipe.name)
    accelerator = make_accelerator("no" if recipe.train is None else recipe.train.precision)
    main = accelerator.is_main_process
    if not main:
        pace = replace(pace, say=lambda line: None, progress=False)
    if restart and main:
        clear(out)
    accelerator.wait_for_everyone()
    result = read_finished(out)
    if result is not None:
        recipe.check_same(result.recipe, out)
        pace.say(f"{recipe.name}: already there")
    elif recipe.fit is None:
        learn(recipe, out, accelerator, pace)
    elif main:
        fit(recipe, recipe.fit, out, accelerator.device, pace)
    if main:
        complete(recipe, out, accelerator.device, pace.say)
    accelerator.wait_for_everyone()
    return finished(out).report


def clear(out: Path) -> None:
    """Remove what a run wrote, and nothing else."""
    for name in (FOLDER, LOGS, SHIPPED, "model"):
        shutil.rmtree(out / name, ignore_errors=True)
    for name in (REPORT, WEIGHTS, "last.safetensors"):
        (out / name).unlink(missing_ok=True)


def fit(recipe: TrainingRecipe, part: RecipeFit, out: Path, device: torch.device, pace: Pace) -> None:
    """Fit the heads of a recipe to a model of the zoo; write them alone, measure the file, write the report."""
    samples = load_samples(recipe)
    load_test(recipe, limit=1)
    network, objective = make_objective(recipe, samples.train.classes, training=False)
    check_length(recipe, network)
    objective.to(device)
    scaffold = Scaffold(network.model)
    feed = make_feed(recipe, samples.train, network.tokenizer, device, samples.rows)
    with reading(recipe, 1), torch.no_grad():
        objective.eval().predict(feed.plain(torch.zeros(1, dtype=torch.int64)))
    pace.say(f"{recipe.name}: {len(scaffold.names)} heads by {part.method} on {len(feed)} samples")
    result = scaffold.fit(FeedBatches(feed), progress=pace.progress, **part.model_dump())
    out.mkdir(parents=True, exist_ok=True)
    state = {name: value for name, value in network.model.state_dict().items() if name.startswith(HEADS)}
    write_tensors(state, out / WEIGHTS, {"name": recipe.name, "digest": recipe.digest()})
    entries = {
        "test": measure(recipe, out / WEIGHTS, load_test(recipe), device),
        "classes": list(samples.train.classes),
        "fit": result.to_dict(),
        "epochs": [],
        "seconds": round(result.seconds, 1),
        "parameters": sum(parameter.numel() for parameter in network.model.parameters()),
        "device": device.type,
    }
    write_report(out, recipe, entries)


def learn(recipe: TrainingRecipe, out: Path, accelerator: Accelerator, pace: Pace) -> None:
    """Train the network of a recipe, or go on with it; write weights and report."""
    for name in recipe.needs:
        find_need(recipe, name, out)
    samples = load_samples(recipe)
    load_test(recipe, limit=1)  # a wrong name is told before hours of training
    torch.manual_seed(derive(recipe.seed, "weights"))
    network, objective = make_objective(recipe, samples.train.classes, training=True)
    check_length(recipe, network)
    begin(recipe, network, out)
    freeze(network.model, recipe.training.freeze, network.classifier)
    loop = make_loop(recipe, out, accelerator, network, objective, samples)
    try_step(loop)
    resumed = loop.resume()
    count, batch = len(samples.rows), recipe.training.batch
    words = f"; going on after step {loop.progress.step}" if resumed else ""
    pace.say(f"{recipe.name}: {recipe.training.epochs} epochs of {count} samples, {loop.steps} steps{words}")
    out.mkdir(parents=True, exist_ok=True)
    if batch > count:
        pace.say(f"{recipe.name}: train.batch is {batch}, so every step sees the {count} samples more than once")
    loop.run(pace)
    if accelerator.is_main_process:
        write_outcome(recipe, out, loop, network)


def begin(recipe: TrainingRecipe, network: Network, out: Path) -> None:
    """Load the weights that a recipe starts from."""
    if recipe.model.start is not None:
        need = find_need(recipe, recipe.model.start, out)
        same_data = need.recipe.data.name == recipe.data.name
        transfer(network.model, need.weights, network.classifier, same_data=same_data)


def make_loop(
    recipe: TrainingRecipe, out: Path, accelerator: Accelerator, network: Network, loss: Objective, data: RecipeSamples
) -> Loop:
    """Put everything on the device."""
    device, tokenizer, classes = accelerator.device, network.tokenizer, data.train.classes
    feed, validation = make_feed(recipe, data.train, tokenizer, device, data.rows, vary=True), None
    # Without labels there is no accuracy to choose by.
    if data.validation is not None and recipe.unlabelled is None:
        validation = make_feed(recipe, data.validation, tokenizer, device, data.validation_rows)
    table = smoothed_targets(len(classes), recipe.training.smoothing, data.train.group_of)
    teacher = make_teacher(recipe, classes, out)
    return Loop(recipe, out, accelerator, loss, feed, validation, table, teacher)


def make_teacher(recipe: TrainingRecipe, classes: Sequence[str], out: Path) -> Ensemble | None:
    """Build the teachers of a recipe as their own reports say; None without teachers."""
    if recipe.distil is None:
        return None
    members, views = [], []
    for name in recipe.distil.teachers:
        need = find_need(recipe, name, out)
        reasons = {
            "has heads": need.recipe.heads is not None,
            "learned without labels, so it has no classifier": need.recipe.unlabelled is not None,
            "learned other data": need.recipe.data.name != recipe.data.name,
        }
        if wrong := [reason for reason, holds in reasons.items() if holds]:
            words = f"a teacher should be a plain network that learned {recipe.data.name}, and this one {wrong[0]}"
            raise ArgumentError(f"{name} cannot teach {recipe.name}: {words}.")
        member = make_network(need.recipe, classes, training=False).model
        load_weights(member, need.weights)
        members.append(member.eval())
        views.append(need.recipe.view)
    return Ensemble(members, views)


def write_outcome(recipe: TrainingRecipe, out: Path, loop: Loop, network: Network) -> None:
    """Write the weights of a run that has come to its end, measure the file, and write the report."""
    # A run that is broken off here goes on from its last checkpoint, and comes here again at once.
    progress, newest = loop.progress, latest_checkpoint(out)
    best = None if newest is None or recipe.training.keep != "best" else newest / "best.safetensors"
    facts = {"name": recipe.name, "digest": recipe.digest()}
    if keep_best := best is not None and best.is_file():
        write_tensors(read_tensors(best), out / WEIGHTS, {**facts, "epoch": str(progress.best_epoch)})
        write_tensors(loop.weights(), out / "last.safetensors", facts)
    else:
        write_tensors(loop.weights(), out / WEIGHTS, {**facts, "epoch": str(len(progress.history))})
    samples = load_test(recipe)
    test = measure(recipe, out / WEIGHTS, samples, loop.accelerator.device)
    if network.tokenizer is not None and recipe.heads is None:
        load_weights(network.model, out / WEIGHTS)
        model: Any = network.model
        with folder_aside(out / ".model.partial") as aside:
            model.save_pretrained(aside)
            network.tokenizer.save_pretrained(aside)
            shutil.rmtree(out / "model", ignore_errors=True)
            aside.rename(out / "model")
    sizes = {name: value.numel() for name, value in network.model.named_parameters()}
    entries = {
        "test": test,
        "classes": list(samples.classes),
        "best_epoch": progress.best_epoch if keep_best else None,
        "epochs": progress.history,
        "seconds": round(progress.seconds, 1),
        "steps": progress.step,
        "parameters": sum(size for name, size in sizes.items() if not name.startswith(PROJECTOR)),
        "processes": loop.accelerator.num_processes,
        "device": loop.accelerator.device.type,
        "precision": str(loop.accelerator.mixed_precision),
    }
    write_report(out, recipe, entries)


def complete(recipe: TrainingRecipe, out: Path, device: torch.device, say: Callable[[str], None]) -> None:
    """Do what the recipe asks for now of a run whose report is there: judge it by another split, ship it, tidy up."""
    run, split, part = finished(out), judging_split(recipe), recipe.ship
    if split != run.report["test"]["split"]:
        say(f"{recipe.name}: judged by the split {split}")
        run = rejudge(run, recipe.data.test, measure(recipe, run.weights, load_test(recipe), device))
    if part is not None and not is_shipped(run, part):
        say(f"{recipe.name}: shipping")
        samples = load_test(recipe)
        ship(run, part, samples, lambda path: measure(recipe, path, samples, device))
    shutil.rmtree(out / FOLDER, ignore_errors=True)


def with_needs(recipe: TrainingRecipe, folder: Path) -> list[TrainingRecipe]:
    """Give a recipe after all those that it needs, each once; files of the folder come before packaged recipes."""
    recipes: dict[str, TrainingRecipe] = {}

    def visit(need: TrainingRecipe, path: tuple[str, ...]) -> None:
        if need.name in path:
            raise ArgumentError(f"Recipes need each other in a circle: {' -> '.join((*path, need.name))}.")
        for name in need.needs:
            if name not in recipes:
                visit(read_recipe(find_named(name, folder)), (*path, need.name))
        recipes[need.name] = need

    visit(recipe, ())
    return list(recipes.values())


def buildable() -> dict[str, TrainingRecipe]:
    """Read the packaged recipes that end in files for the zoo."""
    recipes = {name: read_recipe(path) for name, path in packaged_recipes().items()}
    return {name: recipe for name, recipe in recipes.items() if recipe.ship is not None}


def build(name: str, *, pace: Pace | None = None, smoke: bool = False) -> dict[str, Any]:
    """Train a model of the zoo, named without `zoo:`, with everything that it rests on; what was broken off goes on.

    The files go to the folder where `mhex.load` looks for models that were built, and the runs to its folder `runs`.
    With `smoke`, a few steps on a few samples show whether everything fits together. Gives the card.
    """
    recipes = buildable()
    if name not in recipes:
        raise unknown_name("model to build", name, recipes)
    folder, recipe = models_folder(), recipes[name]
    base = recipe.model.architecture if recipe.model.source == "zoo" else None
    if base is not None and folder_of(base) is None:  # heads are fitted to a model that is not here either
        build(base, pace=pace, smoke=smoke)
    for need in with_needs(recipe, packaged_recipes()[name].parent):
        train(need.smoke() if smoke else need, folder / "runs" / need.name, pace=pace, source=need.name)
    shipped = folder / "runs" / name / SHIPPED
    # The card last: it is what says that the model is there.
    for suffix in (".safetensors", ".json"):
        with replacing(folder / f"{name}{suffix}") as aside:
            shutil.copy(shipped / f"{name}{suffix}", aside)
    card: dict[str, Any] = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    return card
