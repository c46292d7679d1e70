"""Weights for others: a small file and a card that tells how it was made and what it can do."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mhex.errors import ArgumentError
from mhex.lab.config.recipe import RecipeShipping, TrainingRecipe
from mhex.lab.datasets import ImageSet, TextSet, data_entry
from mhex.lab.datasets.catalogue import AnySet
from mhex.lab.train.checkpoint import halved, read_facts, read_tensors, write_tensors, write_text
from mhex.lab.train.report import FinishedRun, lineage
from mhex.zoo.files import pack
from mhex.zoo.hugging_face import minilm_folder
from mhex.zoo.residents import resident_card
from mhex.zoo.runs import REPORT, head_entries

SHIPPED = "shipped"
_PRECISIONS: Mapping[int, Callable[[Mapping[str, Tensor]], dict[str, Tensor]]] = {8: pack, 16: halved, 32: dict}


def ship(
    run: FinishedRun, part: RecipeShipping, samples: AnySet, measure: Callable[[Path], dict[str, Any]]
) -> dict[str, Any]:
    """Write weights and card into the folder ``shipped`` of a run, and measure the weights from there.

    Args:
        run: The finished run.
        part: Says how many bits a weight has.
        samples: The data, for the names of classes and groups.
        measure: From a weights file to the card's entry ``accuracy``.

    Returns:
        The card as written.
    """
    if read_facts(run.weights).get("digest") != run.report["digest"]:
        raise ArgumentError(
            f"The card of {run.recipe.name} would tell of the recipe in {REPORT}, and {run.weights} was made by "
            "another one: train again with --restart."
        )
    weights = run.folder / SHIPPED / f"{run.recipe.name}.safetensors"
    weights.parent.mkdir(exist_ok=True)
    state = learned(run.recipe, read_tensors(run.weights))
    facts = {"name": run.recipe.name, "licence": "see the card", **_origin(run, part)}
    write_tensors(_PRECISIONS[part.bits](state), weights, facts)
    card = {**describe(run, samples), "accuracy": measure(weights)}
    write_text(json.dumps(card, indent=2, ensure_ascii=False) + "\n", weights.with_suffix(".json"))
    return card


def is_shipped(run: FinishedRun, part: RecipeShipping) -> bool:
    """Say whether the folder ``shipped`` holds the weights of this very run and, written last, their card."""
    weights = run.folder / SHIPPED / f"{run.recipe.name}.safetensors"
    card = weights.with_suffix(".json")
    if not weights.is_file() or not card.is_file():
        return False
    split = json.loads(card.read_text(encoding="utf-8"))["accuracy"]["split"]
    return split == run.report["test"]["split"] and _origin(run, part).items() <= read_facts(weights).items()


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
    base = resident_card(model.architecture) if model.source == "zoo" else None
    network = {
        "architecture": model.architecture,
        "arguments": {"num_classes": len(samples.classes), **model.arguments},
    }
    if base is not None:
        network = {"base": base["name"], "architecture": base["architecture"], "arguments": base["arguments"]}
    pretraining = dict.fromkeys(past.recipe.data.name for past in runs if past.recipe.data.name != recipe.data.name)
    card: dict[str, Any] = {
        "name": recipe.name,
        "title": recipe.title,
        "modality": entry.kind,
        "source": model.source,
        **network,
        "classes": list(samples.classes),
    }
    if isinstance(samples, ImageSet) and samples.groups:
        card["groups"] = samples.groups
    if recipe.heads is not None:
        card |= head_entries(recipe.heads.model_dump(mode="json"))
    card["preprocess"] = (
        {"tokenizer": model.source, "length": recipe.data.length}
        if isinstance(samples, TextSet)
        else recipe.view.as_card()
    )
    card["data"] = {"name": entry.title, "licence": entry.licence, "citation": entry.citation, "form": entry.form}
    if pretraining:
        sets = map(data_entry, pretraining)
        card["data"]["pretraining"] = " ".join(f"{data.title} ({data.citation}), {data.form}." for data in sets)
    elif base is not None and "pretraining" in base["data"]:
        card["data"]["pretraining"] = base["data"]["pretraining"]
    card["recipe"] = {
        "command": f"mhex train {recipe.name} --with-needs",
        "settings": recipe.identity(),
        "seed": recipe.seed,
        "epochs": {past.recipe.name: len(past.report["epochs"]) for past in runs},
        "done": " ".join(account(past.recipe) for past in runs),
        "torch": run.report["versions"]["torch"],
        "timm": run.report["versions"]["timm"],
        "date": run.report["date"],
    }
    card["parameters"] = run.report["parameters"]
    card["licence"] = licence(recipe, list(pretraining)) if base is None else base["licence"]
    return card


def account(recipe: TrainingRecipe) -> str:
    """Say in one sentence what was done, for the card."""
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


def licence(recipe: TrainingRecipe, pretraining: list[str]) -> str:
    """Say what may be done with the weights, as far as their data say."""
    sets = [data_entry(name) for name in (recipe.data.name, *pretraining)]
    named = ", and ".join(
        f"{data.title}, which names no licence" if data.licence == "none named" else f"{data.title} ({data.licence})"
        for data in sets
    )
    words = f"The code that made and loads these weights is Apache-2.0. The weights were learned from {named}"
    if "SA" in sets[0].licence:
        return (
            f"{words}; where weights count as derived from their training data, {sets[0].licence} applies to them, "
            "with attribution to the data set cited above."
        )
    return f"{words}; cite the data set named above."
