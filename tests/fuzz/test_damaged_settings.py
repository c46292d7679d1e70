"""Recipes, suites, reports of runs and records of suites, from damaged YAML and JSON files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import yaml
from mutations import damaged_json, damaged_yaml

from mhex.judge.report import read_calls
from mhex.lab.config.recipe import read_recipe
from mhex.lab.config.suite import read_suite
from mhex.lab.suites.stored import read_record
from mhex.lab.train.checkpoint import write_tensors
from mhex.lab.train.report import read_finished
from support.damaged_files import Reader, fuzz_test
from support.suites import suite_dict, write_models
from support.training import recipe_dict

RECIPE = recipe_dict(train={"betas": [0.9, 0.99], "ema": 0.9}, augment={"scale": [0.5, 1.0], "mixup": 0.1})
SUITE = suite_dict()
CALLS = [{"model": "net", "methods": ["gae"], "metrics": ["deletion"], "versions": {"python": "3"}, "command": ""}]


def write_yaml(folder: Path, name: str, value: Any) -> None:
    (folder / name).write_text(yaml.safe_dump(value, sort_keys=False), encoding="utf-8")


def write_small_suite(folder: Path) -> None:
    write_models(folder)
    write_yaml(folder, "small.suite", SUITE)


def write_finished(folder: Path) -> None:
    write_tensors({"a": torch.zeros(1)}, folder / "weights.safetensors")
    report = {"name": "small", "recipe": recipe_dict(), "test": {"top1": 1}}
    (folder / "report.json").write_text(json.dumps(report))


def write_record(folder: Path) -> None:
    models = {"tiny": {"model": "zoo:tiny", "seconds": 1.0, "resumed": False}}
    (folder / "suite.json").write_text(json.dumps({"suite": SUITE, "quick": False, "models": models}))
    (folder / "about.json").write_text(json.dumps(CALLS))


READERS = {
    "recipe": Reader(
        lambda folder: write_yaml(folder, "small.yaml", RECIPE),
        lambda folder: read_recipe(folder / "small.yaml").digest(),
        {"*.yaml": damaged_yaml},
    ),
    "suite": Reader(
        write_small_suite,
        lambda folder: read_suite(folder / "small.suite").entries(quick=True),
        {"*.suite": damaged_yaml},
        variable="MHEX_MODELS",
    ),
    "report of a run": Reader(write_finished, read_finished, {"report.json": damaged_json}),
    "record of a suite": Reader(
        write_record, lambda folder: (read_record(folder), read_calls(folder)), {"*.json": damaged_json}
    ),
}
test_damaged_settings = fuzz_test(READERS)
