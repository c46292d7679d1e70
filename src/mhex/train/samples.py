"""The samples of a recipe: what to learn from, what to choose by, what to judge by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mhex.data import TextSet, data_entry
from mhex.data.catalogue import AnySet
from mhex.errors import ArgumentError
from mhex.train.feeds import Feed, ImageFeed, TextFeed
from mhex.train.recipe import Recipe
from mhex.train.seeds import held_out


@dataclass(frozen=True)
class Samples:
    """Training samples and, apart from them, those to choose by.

    Attributes:
        train: The set to learn from.
        kept: Rows of it that are learned, (N,), int64.
        validation: The set to choose by; None for none.
        chosen: Rows of it, (M,), int64.
    """

    train: AnySet
    kept: Tensor
    validation: AnySet | None = None
    chosen: Tensor | None = None


def load_samples(recipe: Recipe) -> Samples:
    """Load what a recipe learns from and chooses by; what it is judged by stays unread.

    Raises:
        DataMissingError: A file is missing; the message says what to place where.
        ArgumentError: A split is unknown, or nothing is left to learn or to choose by.
    """
    part, entry = recipe.data, data_entry(recipe.data.name)
    wanted = entry.validation if part.validation is None else part.validation
    train = entry.load(part.split or entry.train, limit=part.limit)
    everything = torch.arange(len(train))
    if not wanted:
        return Samples(train, everything)
    if isinstance(wanted, str):
        validation = entry.load(wanted, limit=part.limit)
        return Samples(train, everything, validation, torch.arange(len(validation)))
    out = held_out(len(train), wanted, part.name)
    if out.all() or not out.any():
        raise ArgumentError(
            f"data.validation: a share of {wanted} of {len(train)} samples leaves nothing to choose by, or nothing to "
            "learn; take another share, or more samples."
        )
    return Samples(train, everything[~out], train, everything[out])


def load_test(recipe: Recipe) -> AnySet:
    """Load what a recipe is judged by."""
    judged: AnySet = data_entry(recipe.data.name).load(judging_split(recipe), limit=recipe.data.limit)
    return judged


def check_test(recipe: Recipe) -> None:
    """Read one sample of what a recipe is judged by, so that a wrong name is told before hours of training.

    Raises:
        DataMissingError: A file is missing; the message says what to place where.
        ArgumentError: The split is unknown.
    """
    data_entry(recipe.data.name).load(judging_split(recipe), limit=1)


def judging_split(recipe: Recipe) -> str:
    """Name of the split that a recipe is judged by."""
    return recipe.data.test or data_entry(recipe.data.name).test


def make_feed(
    recipe: Recipe,
    samples: AnySet,
    tokenizer: Any,
    device: torch.device,
    rows: Tensor | None = None,
    *,
    vary: bool = False,
) -> Feed:
    """Put samples on a device in the form that the recipe's network takes.

    Args:
        recipe: Gives view, changes and length.
        samples: A set.
        tokenizer: For texts.
        device: Where batches come out.
        rows: Which samples; all by default.
        vary: Whether to change images at random.
    """
    if isinstance(samples, TextSet):
        return TextFeed(samples, tokenizer, recipe.data.length or 0, device, rows)
    changes = recipe.augment if vary else None
    return ImageFeed(samples, recipe.view, changes, device, rows)
