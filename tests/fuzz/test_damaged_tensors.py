"""Explanations, concepts, heads, weights, checkpoints and caches of maps, from damaged safetensors files."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from containers import damaged_safetensors
from mutations import damaged_json
from safetensors.torch import save_file
from torch import nn

import mhex
from mhex._schema import build
from mhex.heads.files import read_heads
from mhex.heads.heads import Heads
from mhex.judge.cases import MapCache
from mhex.judge.plan import MethodRun
from mhex.lab.config.recipe import TrainingRecipe
from mhex.lab.train.checkpoint import Progress, latest_checkpoint, load_checkpoint, read_facts, save_checkpoint
from mhex.zoo.files import fill, pack, read_weights
from support.collaboration import Net
from support.damaged_files import Damage, Reader, changed, fuzz_test
from support.tiny_bert import bert, tokenizer
from support.tiny_models import pictures, tiny
from support.training import recipe_dict

SAFE: Mapping[str, Damage] = {"*.safetensors": damaged_safetensors}
NET = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3)).eval()


def write_explanation(folder: Path) -> None:
    explanation = mhex.explain(tiny("pre"), pictures(), "gae", target=[0, 1], class_names=[*"abcdefg"])
    explanation.save(folder / "map.safetensors")
    mhex.explain(bert(), ["good film", "bad"], "gae", tokenizer=tokenizer()).save(folder / "text.safetensors")


def load_explanation(folder: Path) -> None:
    for path in changed(folder):
        explanation = mhex.Explanation.load(path)
        repr(explanation)
        explanation.normalized()
        explanation.target_names(0)
        explanation.prediction(0)
        explanation.target_probabilities(0)
        explanation.by_layer()
        explanation.cut(0)
        if explanation.real is not None and explanation.modality == "text":
            explanation.token_scores()
            if explanation.tokens is not None and explanation.words is not None:
                explanation.word_scores()


def write_concept(folder: Path) -> None:
    mhex.Concept(torch.rand(6), "stripes", "cosine", 3).save(folder / "stripes.safetensors")


def load_concept(folder: Path) -> str:
    return mhex.Concept.load(folder / "stripes.safetensors").label


def write_heads(folder: Path) -> None:
    mhex.attach(Net(units=1), 3).save(folder / "heads.safetensors")


def load_heads(folder: Path) -> Any:
    """As `mhex.attach` does, but for the model, whose forward pass is traced and rewritten."""
    settings, _, state = read_heads(folder / "heads.safetensors")
    heads = Heads(settings)
    heads.restore(state)
    return heads.named_blocks()


def write_weights(folder: Path) -> None:
    save_file(NET.state_dict(), folder / "plain.safetensors")
    save_file(pack(NET.state_dict()), folder / "packed.safetensors")


def load_weights(folder: Path) -> None:
    for path in changed(folder):
        fill(NET, read_weights(path), path.name)


RECIPE: TrainingRecipe = build(TrainingRecipe, recipe_dict(), "small.yaml")


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return model, optimizer


TRAINED = trained()


def write_checkpoint(folder: Path) -> None:
    save_checkpoint(folder, RECIPE, Progress(3, 0.5, [{"epoch": 1}], 0.1, 1), *TRAINED, None, None)


def load_last_checkpoint(folder: Path) -> Any:
    place = latest_checkpoint(folder)
    assert place is not None
    read_facts(place / "model.safetensors")
    return load_checkpoint(place, RECIPE, *copy.deepcopy(TRAINED), None)


CACHE_KEY = (MethodRun("gae"), ("a", "b"), torch.tensor([0, 1]), 0)


def write_cache(folder: Path) -> None:
    MapCache(folder, "model", "classification").put(*CACHE_KEY, torch.rand(2, 3, 3))


def read_cache(folder: Path) -> None:
    scores = MapCache(folder, "model", "classification").get(*CACHE_KEY)
    assert scores is None or (
        len(scores) == 2 and scores.dim() in (2, 3) and torch.isfinite(scores).shape == scores.shape
    )


READERS = {
    "explanation": Reader(write_explanation, load_explanation, SAFE),
    "concept": Reader(write_concept, load_concept, SAFE),
    "heads": Reader(write_heads, load_heads, SAFE),
    "weights": Reader(write_weights, load_weights, SAFE),
    "checkpoint": Reader(write_checkpoint, load_last_checkpoint, {**SAFE, "state.json": damaged_json}),
    "cache of maps": Reader(write_cache, read_cache, SAFE),
}
test_damaged_tensors = fuzz_test(READERS)
