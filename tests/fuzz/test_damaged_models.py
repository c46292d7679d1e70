"""Cards, runs and Hugging Face folders, from damaged JSON and safetensors files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import transformers
from containers import damaged_safetensors
from mutations import damaged_json
from torch import nn

import mhex
from mhex.zoo import hugging_face, list_models
from mhex.zoo.runs import load_run
from mhex.zoo.shipped import load_zoo_model
from support.damaged_files import Damage, Reader, fuzz_test
from support.small_photos import photo
from support.zoo_models import CLASSES, MEAN, SMALLEST, STD, write_bert, write_hf_vit, write_resident

JSON: Mapping[str, Damage] = {"*.json": damaged_json}
BOTH: Mapping[str, Damage] = {**JSON, "*.safetensors": damaged_safetensors}
NETWORK: Mapping[str, Damage] = {"config.json": damaged_json, "*.safetensors": damaged_safetensors}


def load_card(folder: Path) -> Any:
    list_models(folder)
    bundle = load_zoo_model("dot", folder)
    assert bundle.preprocess is not None
    bundle.preprocess(photo())
    return [name.title() for name in bundle.class_names]


def write_run(folder: Path) -> None:
    architecture, arguments = SMALLEST
    write_resident(folder, "weights", SMALLEST)
    (folder / "weights.json").unlink()
    data = {"name": "pets", "side": 8, "mean": MEAN, "std": STD}
    model: dict[str, Any] = {"source": "timm", "architecture": architecture}
    model["arguments"] = {name: value for name, value in arguments.items() if name != "num_classes"}
    recipe = {"title": "A run", "data": data, "model": model}
    report = {"recipe": recipe, "classes": CLASSES, "test": {"top1": 0.5}}
    (folder / "report.json").write_text(json.dumps(report))


def load_trained(folder: Path) -> Any:
    bundle = load_run(str(folder))
    return None if bundle.preprocess is None else bundle.preprocess(photo())


def write_text_model(folder: Path) -> None:
    write_bert(folder / "bert", layers=1, width=4)


def write_image_model(folder: Path) -> None:
    write_hf_vit(folder / "vit", layers=1, width=4)


def load_text_model(folder: Path) -> Any:
    """As `mhex.load` does, but for the tokenizer, which has a test of its own."""
    path = folder / "bert"
    kind = hugging_face._kind(path)
    with hugging_face._quiet(transformers):
        return hugging_face._load_model(transformers, path, kind)


def load_tokenizer(folder: Path) -> Any:
    with hugging_face._quiet(transformers):
        return hugging_face._load_tokenizer(transformers, folder / "bert")(["a fine film"])


def load_image_model(folder: Path) -> Any:
    """As `mhex.load` does, but for the image processor, which has a test of its own."""
    path = folder / "vit"
    kind = hugging_face._kind(path)
    with hugging_face._quiet(transformers):
        return hugging_face._load_model(transformers, path, kind)


def load_processor(folder: Path) -> Any:
    with hugging_face._quiet(transformers):
        return hugging_face._image_preprocess(transformers, folder / "vit")(photo())


@pytest.fixture(autouse=True)
def _quick_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """No threads that read a few numbers each, and no random numbers for weights that files replace."""
    monkeypatch.setenv("HF_DEACTIVATE_ASYNC_LOAD", "1")
    for layer in (nn.Linear, nn.Embedding, nn.Conv2d, nn.LayerNorm):
        monkeypatch.setattr(layer, "reset_parameters", lambda self: None)


WHOLE = 1_000  # a whole load takes some ten milliseconds, and the readers of its files are tried one by one
READERS = {
    "card": Reader(lambda folder: write_resident(folder, "dot", SMALLEST), load_card, BOTH),
    "run": Reader(write_run, load_trained, BOTH),
    "text model": Reader(write_text_model, load_text_model, NETWORK),
    "tokenizer": Reader(write_text_model, load_tokenizer, {"tokenizer*.json": damaged_json}),
    "image model": Reader(write_image_model, load_image_model, NETWORK),
    "image processor": Reader(write_image_model, load_processor, {"preprocessor_config.json": damaged_json}),
    "whole text model": Reader(
        write_text_model, lambda folder: mhex.load(f"hf:{folder / 'bert'}").tokenizer(["a fine film"]), BOTH, WHOLE
    ),
    "whole image model": Reader(
        write_image_model, lambda folder: mhex.load(f"hf:{folder / 'vit'}").preprocess(photo()), BOTH, WHOLE
    ),
}
test_damaged_models = fuzz_test(READERS)
