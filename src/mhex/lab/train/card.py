"""Weights for others: a small file and a card that tells how it was made and what it can do."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mhex._files import read_json
from mhex.errors import ArgumentError
from mhex.lab.config.recipe import Recipe, ShipPart
from mhex.lab.config.recipe_files import restore_recipe
from mhex.lab.datasets import ImageSet, TextSet, data_entry
from mhex.lab.datasets.catalogue import AnySet
from mhex.lab.train.checkpoint import halved, read_facts, read_tensors, write_tensors, write_text
from mhex.lab.train.objective import answering, attach_arguments
from mhex.zoo.files import pack
from mhex.zoo.hugging_face import minilm_folder
from mhex.zoo.residents import resident_card

REPORT = "report.json"
WEIGHTS = "weights.safetensors"


@dataclass(frozen=True)
class Finished:
    """A finished run.

    Attributes:
        folder: Where it lies.
        recipe: What was run.
        report: Everything it told.
    """

    folder: Path
    recipe: Recipe
    report: dict[str, Any]

    @property
    def weights(self) -> Path:
        """The file of the weights that count."""
        return self.folder / WEIGHTS


def read_finished(folder: Path) -> Finished | None:
    """The finished run in a folder; None if there is none.

    Raises:
        ArgumentError: The report is damaged.
    """
    path = folder / REPORT
    if not path.is_file() or not (folder / WEIGHTS).is_file():
        return None
    try:
        report = read_json(path.read_text(encoding="utf-8"))
        return Finished(folder, restore_recipe(report["recipe"], str(path)), report)
    except (ValueError, KeyError, TypeError) as error:
        raise ArgumentError(f"The report {path} cannot be read ({error}): remove it, or use --restart.") from error


def find_need(recipe: Recipe, name: str, out: Path) -> Finished:
    """The finished run of a recipe that another one needs, looked for beside that one's folder.

    Args:
        recipe: The one that needs it.
        name: The needed recipe.
        out: Folder of the needing run.

    Raises:
        ArgumentError: It is not there.
    """
    found = read_finished(out.parent / name)
    if found is None:
        raise ArgumentError(
            f"{recipe.name} needs the weights of {name}, and {out.parent / name / WEIGHTS} is not there: add "
            f"--with-needs, or train it first with `mhex train {name} --out {out.parent / name}`."
        )
    return found


def lineage(run: Finished) -> list[Finished]:
    """All runs that a run rests on, itself last, each once and after what it needs."""
    runs: list[Finished] = []
    for name in run.recipe.needs:
        known = {one.folder for one in runs}
        runs += [one for one in lineage(find_need(run.recipe, name, run.folder)) if one.folder not in known]
    return [*runs, run]


def write_report(out: Path, recipe: Recipe, entries: dict[str, Any]) -> dict[str, Any]:
    """Write ``report.json`` with the recipe, versions and date beside what is given."""
    import accelerate
    import timm
    import torch
    import transformers

    import mhex

    report = {
        "name": recipe.name,
        "title": recipe.title,
        **entries,
        "date": time.strftime("%Y-%m-%d"),
        "versions": {
            "mhex": mhex.__version__,
            "torch": torch.__version__.split("+")[0],
            "timm": timm.__version__,
            "transformers": transformers.__version__,
            "accelerate": accelerate.__version__,
        },
        "digest": recipe.digest(),
        "recipe": recipe.as_dict(),
    }
    _write(report, out)
    return report


def rejudge(run: Finished, split: str | None, test: dict[str, Any]) -> Finished:
    """Write the report anew with what another test split says; everything else in it stays.

    Args:
        run: The finished run.
        split: Key ``data.test`` of the recipe; None for the data set's own split.
        test: The entry ``test``.
    """
    recipe = replace(run.recipe, data=replace(run.recipe.data, test=split))
    report = {**run.report, "test": test, "recipe": recipe.as_dict()}
    _write(report, run.folder)
    return Finished(run.folder, recipe, report)


def _write(report: dict[str, Any], out: Path) -> None:
    write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", out / REPORT)


SHIPPED = "shipped"
_PRECISIONS: Mapping[int, Callable[[Mapping[str, Tensor]], dict[str, Tensor]]] = {8: pack, 16: halved, 32: dict}


def ship(run: Finished, part: ShipPart, samples: AnySet, measure: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """Write weights and card into the folder ``shipped`` of a run, and measure the weights from there.

    Args:
        run: The finished run.
        part: In how many bits.
        samples: Of the data, for the names of classes and groups.
        measure: From a weights file to the card's entry ``accuracy``.

    Returns:
        The card as written.

    Raises:
        ArgumentError: The weights were made by another recipe than the card would tell of.
    """
    if read_facts(run.weights).get("digest") != run.report["digest"]:
        raise ArgumentError(
            f"The card of {run.recipe.name} would tell of the recipe in {REPORT}, and {run.weights} was made by "
            "another one: train again with --restart."
        )
    folder = run.folder / SHIPPED
    folder.mkdir(exist_ok=True)
    weights = folder / f"{run.recipe.name}.safetensors"
    state = learned(run.recipe, read_tensors(run.weights))
    facts = {"name": run.recipe.name, "licence": "see the card", **_told(run, part)}
    write_tensors(_PRECISIONS[part.bits](state), weights, facts)
    card = {**describe(run, samples), "accuracy": measure(weights)}
    write_text(json.dumps(card, indent=2, ensure_ascii=False) + "\n", folder / f"{run.recipe.name}.json")
    return card


def is_shipped(run: Finished, part: ShipPart) -> bool:
    """Whether the folder ``shipped`` holds the weights of this very run and, written last, their card."""
    weights = run.folder / SHIPPED / f"{run.recipe.name}.safetensors"
    card = weights.with_suffix(".json")
    if not weights.is_file() or not card.is_file():
        return False
    split = json.loads(card.read_text(encoding="utf-8"))["accuracy"]["split"]
    return split == run.report["test"]["split"] and _told(run, part).items() <= read_facts(weights).items()


def _told(run: Finished, part: ShipPart) -> dict[str, str]:
    """What the header of a shipped file tells about its origin."""
    return {"digest": run.report["digest"], "bits": str(part.bits)}


def learned(recipe: Recipe, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors that a reader of the file cannot have: of a frozen base that comes as a package, none."""
    if recipe.model.source != "minilm" or recipe.training.freeze == "none":
        return dict(state)
    base = read_tensors(minilm_folder() / "model.safetensors")
    same = {name for name, value in base.items() if torch.equal(state.get(f"bert.{name}", value.new_empty(0)), value)}
    return {name: value for name, value in state.items() if name.removeprefix("bert.") not in same}


def describe(run: Finished, samples: AnySet) -> dict[str, Any]:
    """Put a card together, its accuracy aside.

    Args:
        run: The finished run; what it rests on is read from the reports beside it.
        samples: Of the data, for the names of classes and groups.
    """
    recipe, runs = run.recipe, lineage(run)
    base = resident_card(recipe.model.architecture) if recipe.model.source == "zoo" else None
    entry = data_entry(recipe.data.name)
    card: dict[str, Any] = {
        "name": recipe.name,
        "title": recipe.title,
        "modality": entry.kind,
        "source": recipe.model.source,
        **_architecture(recipe, len(samples.classes), base),
        "classes": list(samples.classes),
    }
    if isinstance(samples, ImageSet) and samples.groups:
        card["groups"] = samples.groups
    if recipe.heads is not None:
        card["heads"] = attach_arguments(recipe.heads)
        card["answering"] = answering(recipe.heads)
    card["preprocess"] = (
        {"tokenizer": recipe.model.source, "length": recipe.data.length}
        if isinstance(samples, TextSet)
        else recipe.view.as_card()
    )
    others = dict.fromkeys(one.recipe.data.name for one in runs if one.recipe.data.name != recipe.data.name)
    card["data"] = {"name": entry.title, "licence": entry.licence, "citation": entry.citation, "form": entry.form}
    if others:
        card["data"]["pretraining"] = " ".join(
            f"{data_entry(name).title} ({data_entry(name).citation}), {data_entry(name).form}." for name in others
        )
    elif base is not None and "pretraining" in base["data"]:
        card["data"]["pretraining"] = base["data"]["pretraining"]
    card["recipe"] = {
        "command": f"mhex train {recipe.name} --with-needs",
        "settings": recipe.identity(),
        "seed": recipe.seed,
        "epochs": {one.recipe.name: len(one.report["epochs"]) for one in runs},
        "done": " ".join(account(one.recipe) for one in runs),
        "torch": run.report["versions"]["torch"],
        "timm": run.report["versions"]["timm"],
        "date": run.report["date"],
    }
    card["parameters"] = run.report["parameters"]
    card["licence"] = licence(recipe, list(others)) if base is None else base["licence"]
    return card


def _architecture(recipe: Recipe, classes: int, base: Mapping[str, Any] | None) -> dict[str, Any]:
    """The entries that say what to build; of heads that were fitted, also under which name the rest is found."""
    if base is None:
        return {
            "architecture": recipe.model.architecture,
            "arguments": {"num_classes": classes, **recipe.model.arguments},
        }
    return {"base": base["name"], "architecture": base["architecture"], "arguments": base["arguments"]}


def account(recipe: Recipe) -> str:
    """One sentence about what was done, for the card."""
    part, data = recipe.model, recipe.data
    if recipe.fit is not None:
        return (
            f"{recipe.name}: explainer heads fitted by {recipe.fit.method} to the frozen zoo:{part.architecture} on "
            f"{data.name}, without training."
        )
    settings = recipe.training
    taught = f", taught by {' and '.join(recipe.distil.teachers)}" if recipe.distil else ""
    fresh = "from random weights" if part.source in ("timm", "torchvision") else "from pretrained weights"
    begun = f"from {part.start}" if part.start else fresh
    size = f"{data.side} px" if data.side else f"{data.length} tokens"
    heads = f" with explainer heads ({recipe.heads.preset}, {recipe.heads.mode})" if recipe.heads else ""
    labels = f" without labels ({recipe.unlabelled.method})" if recipe.unlabelled else ""
    probe = " (a linear probe: the body is frozen)" if settings.freeze == "body" and not recipe.heads else ""
    return (
        f"{recipe.name}: {part.architecture or part.source}{heads} {begun} on {data.name} at {size}{labels}{probe}, "
        f"{settings.epochs} epochs of {settings.optimizer} (rate {settings.rate:g}, batch {settings.batch}){taught}."
    )


def licence(recipe: Recipe, others: list[str]) -> str:
    """What may be done with the weights, as far as their data say."""
    sets = [data_entry(name) for name in (recipe.data.name, *others)]
    named = ", and ".join(
        f"{one.title}, which names no licence" if one.licence == "none named" else f"{one.title} ({one.licence})"
        for one in sets
    )
    words = f"The code that made and loads these weights is Apache-2.0. The weights were learned from {named}"
    if "SA" in sets[0].licence:
        return (
            f"{words}; where weights count as derived from their training data, {sets[0].licence} applies to them, "
            "with attribution to the data set cited above."
        )
    return f"{words}; cite the data set named above."
