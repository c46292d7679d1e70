"""Finished runs: the report that each leaves beside its weights, and weights for others with a card."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from torch import Tensor

from mhex._files import read_json, write_text
from mhex._schema import build
from mhex.errors import ArgumentError, require
from mhex.lab.config.recipe import RecipeShipping, TrainingRecipe
from mhex.lab.datasets import TextSet, data_entry
from mhex.lab.datasets.catalogue import AnySet
from mhex.lab.train.checkpoint import halved, read_facts, read_tensors, write_tensors
from mhex.zoo.files import pack
from mhex.zoo.hugging_face import minilm_folder
from mhex.zoo.runs import REPORT, WEIGHTS, head_entries
from mhex.zoo.shipped import zoo_card

SHIPPED = "shipped"
_PRECISIONS: Mapping[int, Callable[[Mapping[str, Tensor]], dict[str, Tensor]]] = {8: pack, 16: halved, 32: dict}


@dataclass(frozen=True)
class FinishedRun:
    """A finished run: its folder, its recipe, and everything in its report."""

    folder: Path
    recipe: TrainingRecipe
    report: dict[str, Any]

    @property
    def weights(self) -> Path:
        """The file of the weights that count."""
        return self.folder / WEIGHTS

    @property
    def shipped(self) -> Path:
        """The file of the weights for others, with the card beside it."""
        return self.folder / SHIPPED / f"{self.recipe.name}.safetensors"


def read_finished(folder: Path) -> FinishedRun | None:
    """Read the finished run in a folder; None if there is none. A damaged report is refused."""
    path = folder / REPORT
    if not path.is_file() or not (folder / WEIGHTS).is_file():
        return None
    try:
        report = read_json(path.read_text(encoding="utf-8"))
        return FinishedRun(folder, build(TrainingRecipe, report["recipe"], str(path)), report)
    except (ValueError, KeyError, TypeError) as error:
        raise ArgumentError(f"The report {path} cannot be read ({error}): remove it, or use --restart.") from error


def finished(out: Path) -> FinishedRun:
    """Read the finished run in a folder, which must be there."""
    run = read_finished(out)
    if run is None:
        raise ArgumentError(f"{out} should hold {REPORT} and {WEIGHTS} now, and does not: something removed them.")
    return run


def find_need(recipe: TrainingRecipe, name: str, out: Path) -> FinishedRun:
    """Find the finished run of a recipe that another one needs, beside the folder of the run that needs it."""
    run = read_finished(out.parent / name)
    if run is None:
        words = f"{recipe.name} needs the weights of {name}, and {out.parent / name / WEIGHTS} is not there"
        command = f"mhex train {name} --out {out.parent / name}"
        raise ArgumentError(f"{words}: add --with-needs, or train it first with `{command}`.")
    return run


def lineage(run: FinishedRun) -> list[FinishedRun]:
    """Give all runs that a run rests on, itself last, each once and after what it needs."""
    runs: dict[Path, FinishedRun] = {}
    for name in run.recipe.needs:
        for ancestor in lineage(find_need(run.recipe, name, run.folder)):
            runs.setdefault(ancestor.folder, ancestor)
    return [*runs.values(), run]


def write_report(out: Path, recipe: TrainingRecipe, entries: dict[str, Any]) -> None:
    """Write ``report.json`` with some entries beside the recipe, versions and date."""
    versions = {name: require(name).__version__ for name in ("mhex", "torch", "timm", "transformers", "accelerate")}
    report = {
        "name": recipe.name,
        "title": recipe.title,
        **entries,
        "date": time.strftime("%Y-%m-%d"),
        "versions": {**versions, "torch": torch.__version__.split("+")[0]},
        "digest": recipe.digest(),
        "recipe": recipe.as_dict(),
    }
    _write_json(report, out / REPORT)


def rejudge(run: FinishedRun, split: str | None, test: dict[str, Any]) -> FinishedRun:
    """Write the report anew with another key ``data.test`` and entry ``test``; everything else in it stays."""
    recipe = run.recipe.model_copy(update={"data": run.recipe.data.model_copy(update={"test": split})})
    report = {**run.report, "test": test, "recipe": recipe.as_dict()}
    _write_json(report, run.folder / REPORT)
    return FinishedRun(run.folder, recipe, report)


def _write_json(value: dict[str, Any], path: Path) -> None:
    write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", path, durable=True)


def ship(
    run: FinishedRun, part: RecipeShipping, samples: AnySet, measure: Callable[[Path], dict[str, Any]]
) -> dict[str, Any]:
    """Write weights, and a card with what `measure` says of them, into the folder ``shipped``; give the card."""
    if read_facts(run.weights).get("digest") != run.report["digest"]:
        raise ArgumentError(f"{run.weights} was made by another recipe than {REPORT}: train again with --restart.")
    weights = run.shipped
    weights.parent.mkdir(exist_ok=True)
    state = learned(run.recipe, read_tensors(run.weights))
    facts = {"name": run.recipe.name, "licence": "see the card", **_origin(run, part)}
    write_tensors(_PRECISIONS[part.bits](state), weights, facts)
    card = {**describe(run, samples), "accuracy": measure(weights)}
    _write_json(card, weights.with_suffix(".json"))
    return card


def is_shipped(run: FinishedRun, part: RecipeShipping) -> bool:
    """Say whether the folder ``shipped`` holds the weights of this very run and, written last, their card."""
    card = run.shipped.with_suffix(".json")
    if not run.shipped.is_file() or not card.is_file():
        return False
    split = json.loads(card.read_text(encoding="utf-8"))["accuracy"]["split"]
    return split == run.report["test"]["split"] and _origin(run, part).items() <= read_facts(run.shipped).items()


def _origin(run: FinishedRun, part: RecipeShipping) -> dict[str, str]:
    """Give what the header of a shipped file tells about its origin."""
    return {"digest": run.report["digest"], "bits": str(part.bits)}


def learned(recipe: TrainingRecipe, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Give the tensors that a reader of the file cannot have: of a frozen base that comes as a package, none."""
    if recipe.model.source != "minilm" or recipe.training.freeze == "none":
        return dict(state)
    base = read_tensors(minilm_folder() / "model.safetensors")
    equal = {name for name, value in base.items() if torch.equal(state.get(f"bert.{name}", value.new_empty(0)), value)}
    return {name: value for name, value in state.items() if name.removeprefix("bert.") not in equal}


def describe(run: FinishedRun, samples: AnySet) -> dict[str, Any]:
    """Put a card together, its accuracy aside; what the run rests on is read from the reports beside it."""
    recipe, runs = run.recipe, lineage(run)
    entry, model = data_entry(recipe.data.name), recipe.model
    # What to build; of heads that were fitted, also under which name the rest is found.
    base = zoo_card(model.architecture) if model.source == "zoo" else None
    arguments = {"num_classes": len(samples.classes), **model.arguments}
    network = {"architecture": model.architecture, "arguments": arguments}
    if base is not None:
        network = {"base": base["name"], "architecture": base["architecture"], "arguments": base["arguments"]}
    names = dict.fromkeys(past.recipe.data.name for past in runs if past.recipe.data.name != recipe.data.name)
    earlier = [data_entry(name) for name in names]  # what earlier runs learned from
    card: dict[str, Any] = {
        "name": recipe.name,
        "title": recipe.title,
        "modality": entry.kind,
        "source": model.source,
        **network,
        "classes": list(samples.classes),
    }
    if samples.groups:
        card["groups"] = samples.groups
    if recipe.heads is not None:
        card |= head_entries(recipe.heads.model_dump(mode="json"))
    text = {"tokenizer": model.source, "length": recipe.data.length}
    card["preprocess"] = text if isinstance(samples, TextSet) else recipe.view.as_card()
    card["data"] = {"name": entry.title, "licence": entry.licence, "citation": entry.citation, "form": entry.form}
    if earlier:
        card["data"]["pretraining"] = " ".join(f"{data.title} ({data.citation}), {data.form}." for data in earlier)
    elif base is not None and "pretraining" in base["data"]:
        card["data"]["pretraining"] = base["data"]["pretraining"]
    card["recipe"] = {
        "command": f"mhex train {recipe.name} --with-needs",
        "settings": recipe.identity(),
        "seed": recipe.seed,
        "epochs": {past.recipe.name: len(past.report["epochs"]) for past in runs},
        "done": " ".join(_template("account").render(recipe=past.recipe) for past in runs),
        "torch": run.report["versions"]["torch"],
        "timm": run.report["versions"]["timm"],
        "date": run.report["date"],
    }
    card["parameters"] = run.report["parameters"]
    card["licence"] = _template("licence").render(sets=[entry, *earlier]) if base is None else base["licence"]
    return card


@cache
def _template(name: str) -> Template:
    """A sentence of a card: what was done by a recipe, or what may be done with the weights, as far as data say."""
    environment = Environment(loader=PackageLoader("mhex.lab.train"), undefined=StrictUndefined, trim_blocks=True)
    return environment.get_template(f"{name}.txt")
