"""A suite made ready: data and models loaded, and whatever a model does not allow refused, before any work is done."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import Any

from torch import nn

from mhex.bench.batching import readable
from mhex.bench.controls import is_control
from mhex.bench.plan import MethodGiven, judged
from mhex.bench.samples import losses_in_words
from mhex.bench.suite import EVERY, Entry, Suite
from mhex.bench.suite_check import check_suite
from mhex.bench.suite_evaluator import evaluator_of
from mhex.bench.suite_shelf import Shelf
from mhex.bundle import Bundle
from mhex.capture import find_anatomy, unwrap
from mhex.data.items import Items
from mhex.errors import ArgumentError, MhexError
from mhex.inputs import prepare
from mhex.registry import all_methods, get_method
from mhex.zoo._places import refuse_missing


@dataclass(frozen=True)
class Ready:
    """A model of a suite with its data.

    Attributes:
        entry: What is asked.
        bundle: The model.
        evaluator: The other network whose outputs are read; None for the model itself.
        items: The samples.
        methods: As `mhex.evaluate` takes them, without the control maps that it adds.
    """

    entry: Entry
    bundle: Bundle
    evaluator: nn.Module | None
    items: Items
    methods: list[MethodGiven]


def make_ready(suite: Suite, quick: bool = False, shelf: Shelf | None = None) -> list[Ready]:
    """Load everything that a suite names, each once.

    Args:
        suite: The suite.
        quick: In its quick form.
        shelf: Where models and data are kept for other suites.

    Raises:
        ArgumentError: Something is wrong; the sentence names the suite and the model.
        DataMissingError: A file is missing; the message says what to place where.
    """
    check_suite(suite, suite.name)
    try:
        refuse_missing(suite.networks(quick))
    except ArgumentError as error:
        raise ArgumentError(f"{suite.name}: {error}") from error
    shelf, found = shelf or Shelf(), []
    for entry in suite.entries(quick):
        items = shelf.items(entry.data, suite.seed)
        bundle = shelf.bundle(entry.model, suite.name)
        other = None if entry.evaluator is None else shelf.bundle(entry.evaluator, suite.name)
        try:
            evaluator = None if other is None else evaluator_of(bundle, other)
            methods = _methods(entry, bundle, items)
        except MhexError as error:
            raise ArgumentError(f"{suite.name}: {entry.label}: {error}") from error
        found.append(Ready(entry, bundle, evaluator, items, methods))
    return found


def _methods(entry: Entry, bundle: Bundle, items: Items) -> list[MethodGiven]:
    """Methods that are judged; one that was named and cannot serve the model is refused."""
    model = unwrap(bundle.model)
    prepared = prepare(model, [_longest(items)], bundle.preprocess, bundle.tokenizer)
    anatomy = find_anatomy(model, prepared.batch)
    tokens = prepared.batch.tokens(anatomy)
    named = [part for part in entry.methods if part.name != EVERY and entry.wanted(part.name)]
    if named:
        judged([part.given for part in named], anatomy, controls=False)
    for part in named:
        if not is_control(part.name):
            get_method(part.name).check_serves(anatomy, tokens)
    found = [part.given if part.options else part.name for part in named]
    if EVERY in [part.name for part in entry.methods]:
        able = [name for name, one in all_methods().items() if not one.refusal(anatomy, tokens)]
        found = [*(name for name in able if entry.wanted(name) and name not in found), *found]
    if not found:
        raise ArgumentError("no method is left to be judged: all that serve the model are left out.")
    return found


def _longest(items: Items) -> Any:
    """The sample that asks the most of methods: of texts the longest, of images any."""
    unread: dict[int, str] = {}
    samples = readable(items, unread)
    first = next(samples, None)
    if first is None:
        raise ArgumentError(f"none of its {len(items)} samples can be read: {losses_in_words(unread)}.")
    if "text" not in first[1]:
        return first[1]["image"]
    return max((item["text"] for _, item in chain([first], samples)), key=len)
