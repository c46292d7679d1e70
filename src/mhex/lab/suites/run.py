"""Running a suite: a report for each model in a folder of its own, and what it was made with beside them."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mhex._files import write_text
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
from mhex.judge.plan import MethodGiven, method_runs
from mhex.judge.report import Report, versions
from mhex.lab.config.suite import EVERY, Suite, SuiteData, SuiteEntry, at, check_suite
from mhex.lab.datasets import data_entry
from mhex.lab.datasets.sets import Items, two_class_items
from mhex.lab.suites.stored import RECORD, SuiteResult, count_samples, read_record
from mhex.methods import all_methods, get_method
from mhex.zoo import load
from mhex.zoo.shipped import model_names, refuse_missing

_OF_THE_CALL = ("device", "versions", "command", "remark")  # they belong to the call that made the rows


class Shelf:
    """Models and data that were loaded so far; they stay until the shelf goes."""

    def __init__(self) -> None:
        self._bundles: dict[str, Bundle] = {}
        self._items: dict[tuple[SuiteData, int], Items] = {}

    def bundle(self, name: str, source: str) -> Bundle:
        """Load a model by its name for `mhex.load`, or give the one that is there; a mistake names the suite."""
        if name not in self._bundles:
            try:
                self._bundles[name] = load(name)
            except MhexError as error:
                from mhex.lab.train.run import buildable

                recipe, words = name.removeprefix("zoo:"), f"{name}: {error}"
                if recipe != name and recipe in buildable() and recipe not in model_names():
                    words = f"{name} is not here; train it with `mhex models build {recipe}`."
                raise ArgumentError(f"{source}: {words}") from error
        return self._bundles[name]

    def items(self, part: SuiteData, seed: int) -> Items:
        """Load samples, or give those that are there; the seed is that of pictures of two classes."""
        key = (part, 0 if part.form == "single" else seed)
        if key not in self._items:
            data = data_entry(part.name)
            if part.form == "single":
                self._items[key] = data.items(part.split, limit=part.limit, **part.options)
            else:
                photos = data.load(part.split or data.test, **part.options)
                self._items[key] = two_class_items(photos, part.form, limit=part.limit, seed=seed)
        return self._items[key]


@dataclass(frozen=True)
class LoadedEntry:
    """A model of a suite with its data."""

    entry: SuiteEntry
    bundle: Bundle
    evaluator: nn.Module | None  # whose outputs are read; None for the model itself
    items: Items
    methods: list[MethodGiven]  # as `mhex.evaluate` takes them, without the control maps that it adds


def load_entries(suite: Suite, quick: bool = False, shelf: Shelf | None = None) -> list[LoadedEntry]:
    """Load everything that a suite names, each once; a mistake names the suite and the model."""
    check_suite(suite, suite.name)
    with at(suite.name):
        refuse_missing(suite.networks(quick))
    shelf, entries = shelf or Shelf(), []
    for entry in suite.entries(quick):
        items = shelf.items(entry.data, suite.seed)
        bundle = shelf.bundle(entry.model, suite.name)
        reader = None if entry.evaluator is None else shelf.bundle(entry.evaluator, suite.name)
        with at(suite.name, entry.label):
            evaluator = None if reader is None else evaluator_of(bundle, reader)
            methods = _methods(entry, bundle, items)
        entries.append(LoadedEntry(entry, bundle, evaluator, items, methods))
    return entries


def _methods(entry: SuiteEntry, bundle: Bundle, items: Items) -> list[MethodGiven]:
    """Give the methods that are judged; one that was named and cannot serve the model is refused."""
    model = unwrap(bundle.model)
    prepared = prepare(model, [_longest(items)], bundle.preprocess, bundle.tokenizer)
    anatomy = find_anatomy(model, prepared.batch)
    tokens = prepared.batch.tokens(anatomy)
    parts = [part for part in entry.methods if part.name not in (EVERY, *entry.leave_out)]
    if parts:
        method_runs([part.argument for part in parts], anatomy, controls=False)
    for part in parts:
        if not is_control(part.name):
            get_method(part.name).check_serves(anatomy, tokens)
    methods = [part.argument if part.options else part.name for part in parts]
    if EVERY in [part.name for part in entry.methods]:
        able = [name for name, method in all_methods().items() if not method.refusal(anatomy, tokens)]
        methods = [*(name for name in able if name not in (*entry.leave_out, *methods)), *methods]
    if not methods:
        raise ArgumentError("no method is left to be judged: all that serve the model are left out.")
    return methods


def _longest(items: Items) -> Any:
    """Find the sample that asks the most of methods: of texts the longest, of images any."""
    unread: dict[int, str] = {}
    samples = readable(items, unread)
    first = next(samples, None)
    if first is None:
        raise ArgumentError(f"none of its {len(items)} samples can be read: {losses_in_words(unread)}.")
    if "text" not in first[1]:
        return first[1]["image"]
    return max((item["text"] for _, item in chain([first], samples)), key=len)


class Resized(nn.Module):
    """A network that is given the height and width that it was trained on, whatever size comes."""

    def __init__(self, network: nn.Module, size: tuple[int, int]) -> None:
        super().__init__()
        self.network, self.size = network, size
        self.eval()

    def forward(self, pixels: Tensor) -> Tensor:
        """Give outputs (B, classes) for pixels (B, C, h, w), normalised."""
        outputs: Tensor = self.network(F.interpolate(pixels, self.size, mode="bilinear", antialias=True))
        return outputs


def evaluator_of(bundle: Bundle, reader: Bundle) -> nn.Module:
    """Let a reader read what the explained network is given, resized; refuse other colours, tokens or classes."""
    if bundle.class_names != reader.class_names:
        raise ArgumentError(f"the evaluator {reader.name} knows other classes than {bundle.name}.")
    ours: Any = bundle.preprocess
    its: Any = reader.preprocess
    if ours == its:
        return reader.model
    images = isinstance(ours, Preprocess) and isinstance(its, Preprocess)
    if images and replace(ours, height=its.height, width=its.width) == its:
        return Resized(reader.model, (its.height, its.width))
    words = f"the evaluator {reader.name} was trained on other inputs ({its}) than {bundle.name} ({ours})"
    raise ArgumentError(f"{words}, and both are given the same; choose one of the same normalisation.")


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
        suite: As `mhex.lab.config.suite.read_suite` gives it.
        out: Folder of the suite: rows of each model in `out/LABEL`, and `out/suite.json`.
        device: Where models run.
        quick: Whether to run the quick form.
        progress: Whether to draw progress bars.
        command: What made the result, for pages; by default this call in words.
        remark: On the circumstances, for pages: that other work ran on the same device, say.
        shelf: Where models and data are kept for other suites.
        say: Takes a line when a model is done.

    Raises:
        ArgumentError: Something is wrong with the suite, a model or the folder; nothing has been judged then.
    """
    out = Path(out)
    entries = load_entries(suite, quick, shelf)
    gpu, command = device.startswith("cuda"), command or f"run_suite({suite.name!r}, quick={quick})"
    words = torch.cuda.get_device_name(device) if gpu else f"{torch.get_num_threads()} threads"
    call = {"device": f"{device} ({words})", "versions": versions(), "command": command, "remark": remark}
    before = dict(read_record(out)["models"]) if (out / RECORD).is_file() else {}
    # What an earlier call told of models whose turn has not come stays, should this one be broken off.
    models = {loaded.entry.label: before[loaded.entry.label] for loaded in entries if loaded.entry.label in before}
    reports: dict[str, Report] = {}
    added = 0
    for number, loaded in enumerate(entries):
        label, started = loaded.entry.label, time.perf_counter()
        parts = _parts(out / label)
        with progress_bar(len(entries), progress, f"{suite.name}: {label}") as bar:
            bar.reach(number)
            report = reports[label] = _judge(suite, loaded, out / label, device, progress)
        new = len(_parts(out / label) - parts)
        seconds = time.perf_counter() - started
        record = {**_record(loaded, report), "seconds": seconds, "resumed": bool(parts), **call}
        models[label] = _joined(before.get(label), record, new)
        added += new
        summary = _summary(suite, quick, models)
        write_text(json.dumps(summary, indent=2), out / RECORD)
        if say is not None:
            controls, count = sum(map(is_control, report.methods)), record["images"]
            words = f"{len(report.methods) - controls} methods and {controls} control maps on {count} samples"
            say(f"{suite.name}: {label}: {words}{'' if new else ', which were there,'} in {seconds:.1f} s.")
    return SuiteResult(suite, quick, reports, summary, added)


def _judge(suite: Suite, loaded: LoadedEntry, folder: Path, device: str, progress: bool) -> Report:
    loaded.bundle.model.to(device)
    if loaded.evaluator is not None:
        loaded.evaluator.to(device)
    settings = suite.model_dump(include={"controls", "batch_size", "seed", "curves", "pictures"})
    return evaluate(
        loaded.bundle,
        loaded.items,
        loaded.methods,
        [part.argument for part in loaded.entry.metrics],
        target=loaded.entry.target,
        evaluator=loaded.evaluator,
        out=folder,
        progress=progress,
        **settings,
    )


def _record(loaded: LoadedEntry, report: Report) -> dict[str, Any]:
    """Give what is recorded of a model, the call aside."""
    entry, evaluator = loaded.entry, loaded.evaluator
    return {
        "model": entry.model,
        "evaluator": entry.evaluator,
        "evaluator_size": list(evaluator.size) if isinstance(evaluator, Resized) else None,
        "data": entry.data.model_dump(mode="json"),
        "target": entry.target,
        "images": count_samples(report),
        "accuracy": loaded.bundle.card.get("accuracy"),
        "methods": report.methods,
        "protocols": {name: report.protocol(name) for name in report.metrics},
        "rows": report.rows.num_rows,
    }


def _joined(before: Mapping[str, Any] | None, record: dict[str, Any], new: int) -> dict[str, Any]:
    """Keep who made the rows and in what time in a record, where they were there already."""
    if before is None:
        return record
    earlier = {"remark": "", **before}
    if new == 0:
        return {**record, **{name: earlier[name] for name in (*_OF_THE_CALL, "seconds", "resumed")}}
    remarks = " ".join(dict.fromkeys(remark for remark in (earlier["remark"], record["remark"]) if remark))
    seconds = before["seconds"] + record["seconds"]  # all of the work, if the first call told of all of its own
    return {**record, "seconds": seconds, "resumed": before["resumed"], "remark": remarks}


def _summary(suite: Suite, quick: bool, models: Mapping[str, Any]) -> dict[str, Any]:
    last = list(models.values())[-1]
    summary = {
        "suite": suite.model_dump(mode="json"),
        "quick": quick,
        "seed": suite.seed,
        "labels": [entry.label for entry in suite.entries(quick)],
        **{name: last[name] for name in _OF_THE_CALL},
        "wall_seconds": sum(record["seconds"] for record in models.values()),
        "models": dict(models),
    }
    return dict(json.loads(json.dumps(summary, default=str)))  # as it will be read


def _parts(folder: Path) -> set[str]:
    return {path.name for _, path in store.numbered(folder)} if folder.is_dir() else set()
