"""A suite made ready: data and models loaded, and whatever a model does not allow refused, before any work is done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mhex.bench.controls import is_control
from mhex.bench.plan import MethodGiven, judged
from mhex.bench.suite import EVERY, DataPart, Entry, Suite
from mhex.bench.suite_check import check_suite
from mhex.bundle import Bundle
from mhex.capture import find_anatomy, unwrap
from mhex.data import data_entry
from mhex.data.items import Items
from mhex.data.two_class import two_class_items
from mhex.errors import ArgumentError, MhexError
from mhex.inputs import prepare
from mhex.registry import all_methods, get_method
from mhex.zoo.names import load
from mhex.zoo.residents import list_models


@dataclass(frozen=True)
class Ready:
    """A model of a suite with its data.

    Attributes:
        entry: What is asked.
        bundle: The model, on the CPU.
        evaluator: The other network whose outputs are read; None for the model itself.
        items: The samples.
        methods: As `mhex.evaluate` takes them, without the control maps that it adds.
    """

    entry: Entry
    bundle: Bundle
    evaluator: Bundle | None
    items: Items
    methods: list[MethodGiven]


def make_ready(suite: Suite, quick: bool = False) -> list[Ready]:
    """Load everything that a suite names, each once.

    Args:
        suite: The suite.
        quick: In its quick form.

    Raises:
        ArgumentError: Something is wrong; the sentence names the suite and the model.
        DataMissingError: A file is missing; the message says what to place where.
    """
    check_suite(suite, suite.name)
    entries = suite.entries(quick)
    data = {part: _items(part, suite.seed) for part in dict.fromkeys(one.data for one in entries)}
    names = dict.fromkeys(name for one in entries for name in (one.model, one.evaluator) if name is not None)
    bundles = {name: _load(name, suite.name) for name in names}
    found = []
    for entry in entries:
        bundle = bundles[entry.model]
        evaluator = None if entry.evaluator is None else bundles[entry.evaluator]
        try:
            if evaluator is not None:
                _check_evaluator(bundle, evaluator)
            methods = _methods(entry, bundle, data[entry.data])
        except MhexError as error:
            raise ArgumentError(f"{suite.name}: {entry.label}: {error}") from error
        found.append(Ready(entry, bundle, evaluator, data[entry.data], methods))
    return found


def _load(name: str, source: str) -> Bundle:
    try:
        return load(name)
    except MhexError as error:
        from mhex.train.build import buildable

        bare = name.removeprefix("zoo:")
        if bare != name and bare in buildable() and f"zoo:{bare}" not in [row["name"] for row in list_models()]:
            raise ArgumentError(f"{source}: {name} is not here; train it with `mhex models build {bare}`.") from error
        raise ArgumentError(f"{source}: {name}: {error}") from error


def _items(part: DataPart, seed: int) -> Items:
    data = data_entry(part.name)
    if part.form == "single":
        return data.items(part.split, limit=part.limit)
    return two_class_items(data.load(part.split or data.test), part.form, limit=part.limit, seed=seed)


def _check_evaluator(bundle: Bundle, evaluator: Bundle) -> None:
    """Refuse another network that would see other pixels, tokens or classes than it was trained on."""
    if bundle.preprocess != evaluator.preprocess:
        raise ArgumentError(
            f"the evaluator {evaluator.name} was trained on other inputs ({evaluator.preprocess}) than {bundle.name} "
            f"({bundle.preprocess}), and both are given the same; choose one of the same size and normalisation."
        )
    if bundle.class_names != evaluator.class_names:
        raise ArgumentError(f"the evaluator {evaluator.name} knows other classes than {bundle.name}.")


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
    first = items[0]
    if "text" not in first:
        return first["image"]
    return max((items[place]["text"] for place in range(len(items))), key=len)
