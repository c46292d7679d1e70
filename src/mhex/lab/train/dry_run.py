"""Checks before a run begins, so that a recipe that cannot work is refused at once."""

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import combinations

import torch

from mhex.errors import ArgumentError, MhexError, require, unknown_name
from mhex.lab.config.recipe import TrainingRecipe
from mhex.lab.datasets import data_entry
from mhex.lab.train.checkpoint import flatten
from mhex.lab.train.loop import DivergedError, Loop
from mhex.lab.train.networks import Network, check_architecture
from mhex.lab.train.objective import logits_of
from mhex.lab.train.optimiser import learning_mode, make_optimizer, state_copy
from mhex.lab.train.samples import derive, epoch_order
from mhex.zoo.files import FAILURES, in_one_line


def check_recipe(recipe: TrainingRecipe, source: str) -> None:
    """Refuse a recipe that cannot be run here, in one sentence that names the file `source` and the key."""
    for mistake in _mistakes(recipe):
        raise ArgumentError(f"{source}: {mistake}")


def _mistakes(recipe: TrainingRecipe) -> Iterator[str]:
    data, train = recipe.data, recipe.train
    try:
        entry = data_entry(data.name)
    except ArgumentError as error:
        yield f"data.name: {error}"
        return
    if not entry.learnable:
        use = "for judging alone" if entry.train is None else f"of {entry.task}"
        yield f"data.name: {entry.title} cannot be learned by a recipe, which trains classifiers; it is {use}."
    key, meaning = ("side", "side in pixels") if entry.kind == "image" else ("length", "most tokens of a text")
    if getattr(data, key) is None:
        yield f"the key data.{key} is missing; expected the {meaning}."
    for name in ("unlabelled", "augment", "distil"):
        if entry.kind == "text" and getattr(recipe, name) is not None:
            yield f"{name} is for images, and {data.name} holds texts: leave it out."
    validation = entry.validation if data.validation is None else data.validation
    splits = {"split": data.split or entry.train, "test": data.test or entry.test}
    if isinstance(validation, str):
        splits["validation"] = validation
    for (key, split), (second_key, second) in combinations(splits.items(), 2):
        if split == second or "all" in (split, second):
            yield f"data.{key} is {split} and data.{second_key} is {second}, which share samples: name others."
    try:
        check_architecture(recipe.model)
    except ArgumentError as error:
        yield f"model.architecture: {error}"
    if train is None:
        return
    from timm.optim import list_optimizers

    require("tensorboard", "train")  # said here, not after the data are loaded
    if train.optimizer not in (names := list_optimizers()):
        yield f"train.optimizer: {unknown_name('optimizer', train.optimizer, names)}"
    if train.early_stopping is not None and not validation:
        yield "train.early_stopping needs a validation, and there is none: set data.validation to a share such as 0.1."


@contextmanager
def one_sentence(words: str, advice: str) -> Iterator[None]:
    """Turn what networks and optimisers raise into one sentence: what could not be done, why, and what to look at."""
    try:
        yield
    except MhexError:
        raise
    except torch.OutOfMemoryError as error:
        raise ArgumentError(f"{words} within memory: lower train.batch, or raise train.accumulate.") from error
    except FAILURES as error:
        raise ArgumentError(f"{words}. {in_one_line(error)} {advice}") from error


def try_step(loop: Loop) -> None:
    """Take the first step of a run and take it back: network, loss, gradients, optimiser and its checkpoint."""
    recipe, settings, model = loop.recipe, loop.recipe.training, loop.model
    before = state_copy(model)
    learning_mode(model, settings.freeze)
    loop.objective.prepare(0, loop.steps)
    rows = epoch_order(len(loop.feed), settings.batch, recipe.seed, 0)[0]
    optimizer = make_optimizer(model, settings)
    torch.manual_seed(derive(recipe.seed, "dropout", 0, 0, loop.accelerator.process_index))
    try:
        with reading(recipe, loop.share), loop.accelerator.autocast():
            batch = loop.feed.varied(rows, slice(0, loop.share), loop.table, recipe.seed, 0)
            loss: torch.Tensor = loop.objective(batch.inputs, batch.targets, loop.advice(batch))
        if not math.isfinite(loss.item()):
            words = f"The first loss of {recipe.name} is {loss.item()}, before anything was learned"
            raise DivergedError(f"{words}: check data.mean, data.std, model.arguments and the weights it starts from.")
        with one_sentence(f"{recipe.name}: no gradient can be computed", "Choose another network."):
            loss.backward()  # type: ignore[no-untyped-call]
        words = f"train.optimizer: {settings.optimizer} cannot take a step here"
        with one_sentence(words, "Choose another, or another train.rate."):
            optimizer.step()
            flatten(optimizer)
    finally:
        for parameter in model.parameters():
            parameter.grad = None
        model.load_state_dict(before)


def reading(recipe: TrainingRecipe, samples: int) -> AbstractContextManager[None]:
    """Refuse, in one sentence, so many samples that a network cannot take."""
    size = f"at {recipe.data.side} px" if recipe.data.side else f"of up to {recipe.data.length} tokens"
    keys = "train.batch, " if recipe.train else ""
    return one_sentence(
        f"{recipe.name}: {recipe.model.architecture or recipe.model.source} cannot take {samples} sample"
        f"{'s' if samples > 1 else ''} {size}",
        f"Check data.{'side' if recipe.data.side else 'length'}, {keys}model.arguments and model.extra.",
    )


def check_length(recipe: TrainingRecipe, network: Network) -> None:
    """Refuse texts that are longer than a network can read; the first batch may hold short ones only."""
    most = getattr(getattr(network.model, "config", None), "max_position_embeddings", None)
    length = recipe.data.length
    if network.tokenizer is None or length is None or not isinstance(most, int) or most < 1:
        return
    words = f"{recipe.name}: the network cannot read {length} tokens"
    advice = f"Lower data.length; its configuration names {most} positions."
    if length > most:
        raise ArgumentError(f"{words}. {advice}")
    # Some networks need a few of their positions for themselves. Any token but padding has a position.
    ids = torch.full((1, length), 1 if network.tokenizer.pad_token_id == 0 else 0)
    with one_sentence(words, advice), torch.no_grad():
        logits_of(network.model.eval(), {"input_ids": ids, "attention_mask": torch.ones_like(ids)})
