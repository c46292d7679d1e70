"""Heads that are fitted, not trained, to a model of the zoo."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from mhex.heads.scaffold import Scaffold
from mhex.train.checkpoint import write_tensors
from mhex.train.evaluate import BATCH
from mhex.train.feeds import Feed, Inputs, row_batches
from mhex.train.machine import Pace
from mhex.train.measure import make_objective, measure
from mhex.train.parameters import HEADS
from mhex.train.recipe import Recipe
from mhex.train.recipe_heads import FitPart
from mhex.train.report import WEIGHTS, write_report
from mhex.train.samples import check_test, load_samples, load_test, make_feed
from mhex.train.trial import check_length, try_answer


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
