"""Running a suite: a report for each model in a folder of its own, and what it was made with beside them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mhex._files import read_json, write_text
from mhex._progress import progress_bar
from mhex.bundle import Bundle
from mhex.capture import find_anatomy, unwrap
from mhex.errors import ArgumentError, MhexError
from mhex.inputs import prepare
from mhex.inputs.data import readable
from mhex.inputs.preprocess import Preprocess
from mhex.inputs.samples import losses_in_words
from mhex.judge import store
from mhex.judge.controls import is_control
from mhex.judge.evaluation import evaluate
from mhex.judge.plan import MethodGiven, judged
from mhex.judge.report import Report, versions
from mhex.lab.config.suite import EVERY, DataPart, Entry, Suite
from mhex.lab.config.suite_check import check_suite
from mhex.lab.datasets import data_entry
from mhex.lab.datasets.photo_files import Items
from mhex.lab.datasets.two_class import two_class_items
from mhex.methods import all_methods, get_method
from mhex.zoo.names import load
from mhex.zoo.places import refuse_missing
from mhex.zoo.residents import list_models


class Shelf:
    """What was loaded so far; it stays until the shelf goes."""

    def __init__(self) -> None:
        self._bundles: dict[str, Bundle] = {}
        self._items: dict[tuple[DataPart, int], Items] = {}

    def bundle(self, name: str, source: str) -> Bundle:
        """A model.

        Args:
            name: As for `mhex.load`.
            source: Name of the suite, for messages.

        Raises:
            ArgumentError: It cannot be loaded; the sentence says how to make it where there is a recipe.
        """
        if name not in self._bundles:
            self._bundles[name] = _load(name, source)
        return self._bundles[name]

    def items(self, part: DataPart, seed: int) -> Items:
        """Samples.

        Args:
            part: Which.
            seed: Of pictures of two classes.

        Raises:
            DataMissingError: A file is missing; the message says what to place where.
        """
        own = (part, 0 if part.form == "single" else seed)
        if own not in self._items:
            self._items[own] = _items(part, seed)
        return self._items[own]


def _load(name: str, source: str) -> Bundle:
    try:
        return load(name)
    except MhexError as error:
        from mhex.lab.train.dependencies import buildable

        bare = name.removeprefix("zoo:")
        if bare != name and bare in buildable() and f"zoo:{bare}" not in [row["name"] for row in list_models()]:
            raise ArgumentError(f"{source}: {name} is not here; train it with `mhex models build {bare}`.") from error
        raise ArgumentError(f"{source}: {name}: {error}") from error


def _items(part: DataPart, seed: int) -> Items:
    data = data_entry(part.name)
    if part.form == "single":
        return data.items(part.split, limit=part.limit, **part.options)
    return two_class_items(data.load(part.split or data.test, **part.options), part.form, limit=part.limit, seed=seed)


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


class Resized(nn.Module):
    """A network that is given its own input size, whatever size comes.

    Args:
        network: Takes pixels (B, C, H, W).
        size: Height and width that it was trained on.
    """

    def __init__(self, network: nn.Module, size: tuple[int, int]) -> None:
        super().__init__()
        self.network, self.size = network, size
        self.eval()

    def forward(self, pixels: Tensor) -> Tensor:
        """Outputs (B, classes) for pixels (B, C, h, w), normalised."""
        found: Tensor = self.network(F.interpolate(pixels, self.size, mode="bilinear", antialias=True))
        return found


def evaluator_of(bundle: Bundle, other: Bundle) -> nn.Module:
    """The other network, ready to read what the explained one is given.

    Args:
        bundle: The explained model.
        other: The network that is read. Where it was trained on another size, inputs are resized for it.

    Raises:
        ArgumentError: It would see other colours, tokens or classes than it was trained on.
    """
    if bundle.class_names != other.class_names:
        raise ArgumentError(f"the evaluator {other.name} knows other classes than {bundle.name}.")
    ours, its = bundle.preprocess, other.preprocess
    if ours == its:
        return other.model
    if (
        isinstance(ours, Preprocess)
        and isinstance(its, Preprocess)
        and replace(ours, height=its.height, width=its.width) == its
    ):
        return Resized(other.model, (its.height, its.width))
    raise ArgumentError(
        f"the evaluator {other.name} was trained on other inputs ({its}) than {bundle.name} ({ours}), and both are "
        "given the same; choose one of the same normalisation."
    )


TOLD = "suite.json"
_OF_THE_WORK = ("device", "versions", "command", "remark")  # they belong to the call that made the rows


@dataclass(frozen=True)
class SuiteResult:
    """What a suite found.

    Attributes:
        suite: The suite.
        quick: Whether in its quick form.
        reports: By the labels of the models.
        told: What `suite.json` holds.
        added: Rows that this call made; 0 where all were there.
    """

    suite: Suite
    quick: bool
    reports: Mapping[str, Report]
    told: Mapping[str, Any]
    added: int

    @property
    def remarks(self) -> list[str]:
        """A sentence on models whose turn has not come, where a run was broken off."""
        return missing_models(self.told)

    @property
    def lost(self) -> dict[str, Mapping[int, str]]:
        """For each model, the samples that could not be judged, and why; models without any are left out."""
        return {label: report.lost for label, report in self.reports.items() if report.lost}


def missing_models(told: Mapping[str, Any]) -> list[str]:
    """A sentence on models of a suite that have no record in its `suite.json`; empty if all have."""
    labels = told.get("labels", ())
    missing = [label for label in labels if label not in told["models"]]
    if not missing:
        return []
    return [
        f"Broken off, or still running: {len(labels) - len(missing)} of {len(labels)} models of this suite are judged, "
        f"and {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not. The same command goes on from there."
    ]


def run_suite(
    suite: Suite,
    out: str | PathLike[str],
    *,
    device: str = "cpu",
    quick: bool = False,
    progress: bool = False,
    command: str | None = None,
    remark: str = "",
    shelf: Shelf | None = None,
    say: Callable[[str], None] | None = None,
) -> SuiteResult:
    """Judge all that a suite asks for. The same call goes on where a broken one stopped; what is there stays.

    Args:
        suite: As `mhex.lab.config.suite_files.read_suite` gives it.
        out: Folder of the suite: rows of each model in `out/LABEL`, and `out/suite.json`.
        device: Where models run.
        quick: In the quick form.
        progress: Draw progress bars with the time that is left.
        command: What made the result, for pages; by default this call in words.
        remark: On the circumstances, for pages: that other work ran on the same device, say.
        shelf: Where models and data are kept for other suites.
        say: Told in a line when a model is done, and how long it took.

    Raises:
        ArgumentError: Something is wrong with the suite, a model or the folder; nothing has been judged then.
    """
    out = Path(out)
    ready = make_ready(suite, quick, shelf)
    command = command or f"run_suite({suite.name!r}, quick={quick})"
    before = records_in(out)
    # What an earlier call told of models whose turn has not come stays, should this one be broken off.
    records = {one.entry.label: before[one.entry.label] for one in ready if one.entry.label in before}
    reports, added = {}, 0
    for number, one in enumerate(ready):
        folder, started = out / one.entry.label, time.perf_counter()
        had = _parts(folder)
        with progress_bar(len(ready), progress, f"{suite.name}: {one.entry.label}") as bar:
            bar.reach(number)
            reports[one.entry.label] = _judge(suite, one, folder, device, progress)
        new = len(_parts(folder) - had)
        work = {"device": _device(device), "versions": versions(), "command": command, "remark": remark}
        seconds = time.perf_counter() - started
        record = _record(one, reports[one.entry.label], work, seconds, bool(had))
        records[one.entry.label] = _joined(before.get(one.entry.label), record, new)
        added += new
        told = _told(suite, quick, records)
        write_text(json.dumps(told, indent=2), out / TOLD)
        if say is not None:
            say(f"{suite.name}: {one.entry.label}: {_spoken(record, new)} in {seconds:.1f} s.")
    return SuiteResult(suite, quick, reports, told, added)


def _judge(suite: Suite, one: Ready, folder: Path, device: str, progress: bool) -> Report:
    one.bundle.model.to(device)
    if one.evaluator is not None:
        one.evaluator.to(device)
    return evaluate(
        one.bundle,
        one.items,
        one.methods,
        [part.given for part in one.entry.metrics],
        target=one.entry.target,
        controls=suite.controls,
        batch_size=suite.batch_size,
        evaluator=one.evaluator,
        seed=suite.seed,
        out=folder,
        curves=suite.curves,
        pictures=suite.pictures,
        progress=progress,
    )


def _spoken(record: Mapping[str, Any], new: int) -> str:
    """What was done, in a line."""
    controls = sum(map(is_control, record["methods"]))
    done = f"{len(record['methods']) - controls} methods and {controls} control maps on {record['images']} samples"
    return done if new else f"{done}, which were there,"


def _record(one: Ready, report: Report, work: Mapping[str, Any], seconds: float, resumed: bool) -> dict[str, Any]:
    """What is told of a model."""
    samples = set(zip(*(report.rows.column(name).to_pylist() for name in ("image", "input")), strict=True))
    return {
        "model": one.entry.model,
        "evaluator": one.entry.evaluator,
        "evaluator_size": list(one.evaluator.size) if isinstance(one.evaluator, Resized) else None,
        "data": asdict(one.entry.data),
        "target": one.entry.target,
        "images": len(samples),
        "accuracy": one.bundle.card.get("accuracy"),
        "methods": report.methods,
        "protocols": {name: report.protocol(name) for name in report.metrics},
        "rows": report.rows.num_rows,
        "seconds": seconds,
        "resumed": resumed,
        **work,
    }


def _joined(before: Mapping[str, Any] | None, record: dict[str, Any], new: int) -> dict[str, Any]:
    """A record that keeps who made the rows and in what time, where they were there already."""
    if before is None:
        return record
    earlier = {"remark": "", **before}
    if new == 0:
        return {**record, **{name: earlier[name] for name in (*_OF_THE_WORK, "seconds", "resumed")}}
    remarks = " ".join(dict.fromkeys(one["remark"] for one in (earlier, record) if one["remark"]))
    seconds = before["seconds"] + record["seconds"]  # all of the work, if the first call told of all of its own
    return {**record, "seconds": seconds, "resumed": before["resumed"], "remark": remarks}


def _told(suite: Suite, quick: bool, records: Mapping[str, Any]) -> dict[str, Any]:
    last = list(records.values())[-1]
    told = {
        "suite": asdict(suite),
        "quick": quick,
        "seed": suite.seed,
        "labels": [entry.label for entry in suite.entries(quick)],
        **{name: last[name] for name in _OF_THE_WORK},
        "wall_seconds": sum(one["seconds"] for one in records.values()),
        "models": dict(records),
    }
    return dict(json.loads(json.dumps(told, default=str)))  # as it will be read


def records_in(out: Path) -> dict[str, Any]:
    """What is told of each model in the folder of a suite, by label; empty if nothing is."""
    return dict(told_in(out)["models"]) if (out / TOLD).is_file() else {}


def told_in(out: Path) -> dict[str, Any]:
    """What `suite.json` in the folder of a suite holds.

    Raises:
        ArgumentError: There is none, or it is damaged.
    """
    path = out / TOLD
    if not path.is_file():
        raise ArgumentError(f"Expected {TOLD} in {out}, which `mhex bench` writes beside its rows, but there is none.")
    try:
        told = dict(read_json(path.read_text(encoding="utf-8")))
        if not all(isinstance(told[key], Mapping) for key in ("suite", "models")):
            raise TypeError("suite and models should be mappings")
    except (ValueError, KeyError, TypeError) as error:
        raise ArgumentError(f"{path} is damaged ({error}); delete it: rows are kept apart from it.") from error
    return told


def _parts(folder: Path) -> set[str]:
    return {path.name for _, path in store.numbered(folder)} if folder.is_dir() else set()


def _device(device: str) -> str:
    """The device in words."""
    if device.startswith("cuda"):
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return f"{device} ({torch.get_num_threads()} threads)"
