"""One step on trial before a run begins, so that what cannot work is a sentence and not the end of a night."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

from mhex.errors import ArgumentError, MhexError
from mhex.lab.config.recipe import Recipe
from mhex.lab.train.checkpoint import flatten
from mhex.lab.train.loop import DivergedError, Loop
from mhex.lab.train.networks import FAILURES, Network, in_one_line
from mhex.lab.train.objective import Objective, logits_of
from mhex.lab.train.optimiser import learning_mode, make_optimizer
from mhex.lab.train.samples import Feed, derive, epoch_order


@contextmanager
def told(words: str, advice: str) -> Iterator[None]:
    """Turn what networks and optimisers raise into one sentence.

    Args:
        words: What could not be done.
        advice: What to look at.

    Raises:
        ArgumentError: Something went wrong inside; errors of mhex itself pass as they are.
    """
    try:
        yield
    except MhexError:
        raise
    except torch.OutOfMemoryError as error:
        raise ArgumentError(
            f"{words}, since it does not fit into memory: lower train.batch, or raise train.accumulate."
        ) from error
    except FAILURES as error:
        raise ArgumentError(f"{words}. {in_one_line(error)} {advice}") from error


def try_step(loop: Loop) -> None:
    """Take the first step of a run and take it back: network, loss, gradients, optimiser and its checkpoint.

    Args:
        loop: Before its first step; it is left as it was.

    Raises:
        ArgumentError: Something cannot work; the message says what, and what to change.
        DivergedError: The very first loss is no number.
    """
    recipe, settings, model = loop.recipe, loop.recipe.training, loop.model
    before = {name: value.detach().clone() for name, value in model.state_dict().items()}
    learning_mode(model, settings.freeze)
    loop.objective.prepare(0, loop.steps)
    rows = epoch_order(len(loop.feed), settings.batch, recipe.seed, 0)[0]
    optimizer = make_optimizer(model, settings)
    torch.manual_seed(derive(recipe.seed, "dropout", 0, 0, loop.accelerator.process_index))
    try:
        with _seeing(recipe, loop.share), loop.accelerator.autocast():
            batch = loop.feed.varied(rows, slice(0, loop.share), loop.table, recipe.seed, 0)
            advice = None
            if loop.teacher is not None and batch.pixels is not None:
                with torch.no_grad():
                    advice = loop.teacher(batch.pixels)
            loss: torch.Tensor = loop.objective(batch.inputs, batch.targets, advice)
        if not math.isfinite(loss.item()):
            raise DivergedError(
                f"The first loss of {recipe.name} is {loss.item()}, before anything was learned: check data.mean, "
                "data.std, model.arguments and the weights it starts from."
            )
        with told(f"{recipe.name}: no gradient can be computed", "Choose another network."):
            loss.backward()  # type: ignore[no-untyped-call]
        with told(
            f"train.optimizer: {settings.optimizer} cannot take a step here", "Choose another, or another train.rate."
        ):
            optimizer.step()
            flatten(optimizer)
    finally:
        for parameter in model.parameters():
            parameter.grad = None
        model.load_state_dict(before)


def try_answer(recipe: Recipe, objective: Objective, feed: Feed) -> None:
    """Ask a network about one sample.

    Raises:
        ArgumentError: It cannot read it; the message says what to change.
    """
    with _seeing(recipe, 1), torch.no_grad():
        objective.eval().predict(feed.plain(torch.zeros(1, dtype=torch.int64)))


def _seeing(recipe: Recipe, samples: int) -> AbstractContextManager[None]:
    size = f"at {recipe.data.side} px" if recipe.data.side else f"of up to {recipe.data.length} tokens"
    keys = "train.batch, " if recipe.train else ""
    return told(
        f"{recipe.name}: {recipe.model.architecture or recipe.model.source} cannot take {samples} sample"
        f"{'s' if samples > 1 else ''} {size}",
        f"Check data.{'side' if recipe.data.side else 'length'}, {keys}model.arguments and model.extra.",
    )


def check_length(recipe: Recipe, network: Network) -> None:
    """Refuse texts that are longer than a network can read; the first batch may hold short ones only.

    Raises:
        ArgumentError: The network has positions for fewer tokens.
    """
    most = getattr(getattr(network.model, "config", None), "max_position_embeddings", None)
    length = recipe.data.length
    if network.tokenizer is None or length is None or not isinstance(most, int) or most < 1:
        return
    advice = f"Lower data.length; its configuration names {most} positions."
    if length > most:
        raise ArgumentError(f"{recipe.name}: the network cannot read {length} tokens. {advice}")
    # Some networks need a few of their positions for themselves. Any token but padding has a position.
    ids = torch.full((1, length), 1 if network.tokenizer.pad_token_id == 0 else 0)
    with told(f"{recipe.name}: the network cannot read {length} tokens", advice), torch.no_grad():
        logits_of(network.model.eval(), {"input_ids": ids, "attention_mask": torch.ones_like(ids)})
